"""What runs from the source tree and is not installed: bench, scaling and the demo."""
