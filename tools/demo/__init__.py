"""`python -m bridge demo`: a real transformer on real sentences, through torch and JAX."""
