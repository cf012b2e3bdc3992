"""JAX functions and modules in torch (docs/from_jax.md).

- `functions`: the public `from_jax`; `modules`, `parts`, `pickling`: the public `JaxModule`.
- `leaves`, `static_arguments`: what of a call is traced, what is not, and what is refused.
- `program`, `forward`: a JAX function of flat arrays, its derivatives and batches, programs again.
- `call`, `dispatcher`: a program as a torch function, and as one op of torch's dispatcher.
"""
