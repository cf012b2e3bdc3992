"""Compositions of several ops as one differentiable function of JAX."""
