"""Tensors and trees from one framework to the other, without a copy where memory can be shared.

- `convert`: the public `to_torch` and `to_jax`; `uncompiled`: what torch.compile sees of them.
- `crossing`: trees and single tensors across the border, and the words of what is refused there.
- `from_tensor`, `from_array`, `from_producer`: one tensor, one array, one object with DLPack.
- `cuda`: streams and devices of a crossing on GPUs.
- `dtypes`: which cross; `refusal`: errors that name the leaf; `trees`: one registry of nodes.
- `pickling`: the functions of `from_jax` and `from_torch` by their names.
- `runtime`: JAX's devices, and processes that were forked; `callbacks`: who may not call JAX now.
"""

from bridge.exchange.convert import to_jax, to_torch

__all__ = ["to_jax", "to_torch"]
