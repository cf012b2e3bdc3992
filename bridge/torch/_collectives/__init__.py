"""`all_gather` for torch, differentiable to any order.

- `all_gather`: the public function and its derivatives.
- `transport`: the two exchanges on plain tensors; `direct`: on Gloo without torch's detours.
- `dispatcher`: the exchanges as ops of torch's dispatcher.
- `groups`: which ranks take part, and whether they want the same.
"""
