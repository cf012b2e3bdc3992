"""Torch functions and modules in JAX (docs/from_torch.md).

- `functions`: the public `from_torch`; `errors`: the public `torch_errors`.
- `modules`: a torch module as a function; `names`: the names of functions in messages.
- `arguments`, `call`, `results`, `watch`: the tensors among the arguments of a call, its results,
  and its side effects.
- `program`, `primitive`: a program and its derivatives and batches, under one JAX primitive.
- `border`, `thread`, `seed`: run programs on JAX's arrays, on a prepared thread, from a seed.
"""
