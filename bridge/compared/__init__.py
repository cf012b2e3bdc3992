"""The comparison of a JAX port with its PyTorch original, value by value."""
