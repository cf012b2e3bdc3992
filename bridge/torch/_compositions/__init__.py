"""Compositions of several ops as one differentiable op of torch."""
