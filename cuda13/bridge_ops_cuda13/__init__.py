"""The folder of bridge's CUDA kernels; `bridge` finds them here."""
