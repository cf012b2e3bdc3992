"""Four vision models in torch.nn and in Flax NNX, trained with the same bits."""
