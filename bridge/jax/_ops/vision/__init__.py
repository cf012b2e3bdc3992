"""Ops of vision models: batch norm, pooling and resizing."""
