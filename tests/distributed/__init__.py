"""Promises that several processes keep together."""
