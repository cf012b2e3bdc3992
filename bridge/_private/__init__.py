"""Names of torch and JAX that are not public, with a fallback for releases without them.

- `names`: the look-up; `torch`, `torch_distributed`, `jax`: the names of each framework, which
  these modules import.
"""
