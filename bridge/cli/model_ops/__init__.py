"""Forms of the ops that a model is made of: products, attention, embedding, loss and optimizers."""
