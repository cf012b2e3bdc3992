"""Commands of the source tree, which are not installed: bench, scaling and the demo."""
