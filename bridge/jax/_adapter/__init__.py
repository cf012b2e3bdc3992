"""The adapter for JAX: runs any op from its definition; no file here names an op.

- `arguments`: argument checks of the public functions, and their compiled forms.
- `primitive`: one primitive an op, with a rule for every transform; `debug`: JAX's search for NaN.
- `ffi`, `host_call`: XLA custom calls into the kernels, and calls of Python on the host.
- `avals`: types and shardings of traced values.
"""
