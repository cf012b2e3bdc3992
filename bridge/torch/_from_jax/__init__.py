"""JAX functions and modules in torch (docs/from_jax.md).

- `functions`: the public `from_jax`; `modules`, `parts`, `pickling`: the public `JaxModule`.
- `leaves`, `static_arguments`: the arguments of a call: traced, static or refused.
- `program`, `forward`: a JAX function of flat arrays; its derivatives and batched forms are
  programs again.
- `call`, `dispatcher`: a program as a torch function, and as one op of torch's dispatcher.
"""
