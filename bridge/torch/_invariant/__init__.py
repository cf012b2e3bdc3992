"""`bridge.torch.invariant`: torch's own functions of rows run on bridge's kernels."""
