"""Names of torch and JAX that are not public, and what is done where one of them is gone.

- `names`: how one is looked up; `torch`, `jax`: the names of each, which import that framework.
"""
