"""`all_gather` for JAX; `agreement` compares the arguments of all shards."""
