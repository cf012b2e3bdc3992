"""`all_gather` for JAX; `agreement` compares what the shards give to it."""
