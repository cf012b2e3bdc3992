"""Torch functions and modules in JAX (docs/from_torch.md).

- `functions`: the public `from_torch`; `errors`: the public `torch_errors`.
- `modules`: a torch module as a function; `names`: what messages call a function.
- `arguments`, `call`, `results`, `watch`: what of a user's call is a tensor, what comes back, and
  what the function does besides.
- `program`, `primitive`: its derivatives and batches, programs again, under one JAX primitive.
- `border`, `thread`, `seed`: programs run on JAX's arrays, on which thread and from which seed.
"""
