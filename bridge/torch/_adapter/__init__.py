"""The adapter: runs, differentiates and batches any op from its definition.

No file here knows an op by name.

- `entry`: the path from a public function into its op; `overrides`: `__torch_function__`.
- `checks`: checks of properties that only torch tensors have, such as layout and device.
- `autograd`, `autograd_functions`, `derivatives`: differentiable calls, eagerly and in torch.func.
- `dispatcher`, `dispatcher_rules`: the ops of torch's dispatcher, which tracing sees;
  `below_autograd`: the recording of such an op.
- `kernels`, `destination`, `threads`: memory for results, `out=`, the threads that kernels use.
"""
