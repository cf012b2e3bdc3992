"""`bridge.jax.invariant`: JAX's own functions of rows run on bridge's kernels."""
