"""Any op in torch, from its definition: no file here knows an op by name.

- `entry`: from a public function into its op; `overrides`: `__torch_function__`.
- `checks`: what only torch tensors can be.
- `autograd`, `derivatives`: calls of ops that can be differentiated, eagerly and in torch.func.
- `dispatcher`, `dispatcher_rules`: the ops of torch's dispatcher, which tracing sees;
  `below_autograd`: how an op there is recorded.
- `kernels`, `destination`, `threads`: memory for results, `out=`, the threads that kernels use.
"""
