"""Runs of the model and of its port in which every value is recorded."""
