"""The code behind `bridge.torch.huggingface`."""
