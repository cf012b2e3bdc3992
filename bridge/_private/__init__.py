"""Every name of torch and JAX that their makers do not promise to keep, and what is done without it.

- `names`: how one is looked up; `torch`, `jax`: the names of each, which import that framework.
"""
