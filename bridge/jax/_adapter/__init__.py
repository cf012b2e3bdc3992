"""Any op in JAX, from its definition: no file here knows an op by name.

- `arguments`: what public functions make of their arguments.
- `primitive`: one primitive an op, with a rule for every transform; `debug`: JAX's search for NaN.
- `ffi`, `host_call`: XLA custom calls into the kernels, and calls of Python on the host.
- `avals`: types and shardings of traced values.
"""
