"""How one tensor crosses the border between PyTorch and JAX, and when it may not."""
