"""`all_gather` for torch, differentiable to any order.

- `all_gather`: the public function and its derivatives.
- `transport`: the two exchanges on plain tensors; `direct`: exchanges over Gloo without the
  overhead of torch's functional collectives.
- `dispatcher`: the exchanges as ops of torch's dispatcher.
- `groups`: the ranks of an exchange, and the comparison of their arguments.
"""
