"""Forms of the ops that a model is made of, from products to optimizers and images."""
