"""The code behind `bridge.jax.nnx.replace`."""
