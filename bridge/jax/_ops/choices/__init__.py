"""The public functions that choose columns, for JAX."""
