"""The public functions of bridge.catalogue.post_training for JAX."""
