"""Conversion of tensors and trees between the frameworks, on shared memory where possible.

- `convert`: the public `to_torch` and `to_jax`; `uncompiled`: their form under torch.compile.
- `crossing`: conversion of trees and single tensors, and the errors that name a leaf.
- `from_tensor`, `from_array`, `from_producer`: one tensor, one array, one object with DLPack.
- `cuda`: streams and devices of a conversion on GPUs.
- `dtypes`: the supported dtypes; `refusal`: errors that name the leaf; `trees`: one registry of
  nodes.
- `pickling`: pickles the functions of `from_jax` and `from_torch` by name.
- `runtime`: JAX's devices, and forked processes; `callbacks`: no calls of JAX inside a callback.
"""

from bridge.exchange.convert import to_jax, to_torch

__all__ = ["to_jax", "to_torch"]
