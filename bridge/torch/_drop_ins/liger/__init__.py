"""The code behind `bridge.torch.liger`."""
