"""Detection of a torch function's side effects, by a look at each of its operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bridge._private.torch import TorchDispatchMode, tree_leaves

# Batch norms write running statistics, which their schemas do not declare. The value is the
# position of the argument `training`.
_NORMS = {
    "aten::native_batch_norm": 5,
    "aten::cudnn_batch_norm": 5,
    "aten::miopen_batch_norm": 5,
}


class Watch(TorchDispatchMode):
    """Refuses operations with side effects that JAX does not know of.

    Args:
        function: the name of the torch function, for errors.
        operands: tensors that must not be written to, by their names in the user's call.
        may_draw: True if random numbers may be drawn.
    """

    def __init__(self, function: str, operands: Mapping[str, Tensor], may_draw: bool) -> None:
        super().__init__()
        self._function = function
        self._operands = {_memory(tensor): path for path, tensor in operands.items()}
        self._may_draw = may_draw
        self._written: dict[int, Tensor] = {}

    def has_seen_write_to(self, tensor: Tensor) -> bool:
        return _memory(tensor) in self._written

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self._may_draw and _draws(op, args, kwargs):
            raise ValueError(
                f"from_torch: {self._function} draws random numbers ({op}), and must draw the same "
                "again for its gradient: pass seeded=True to from_torch and seed= to each call, or "
                "put the module into eval mode with train=False"
            )
        for tensor in _written(op, args, kwargs):
            memory = _memory(tensor)
            if memory in self._operands:
                raise ValueError(
                    f"from_torch: {self._function} writes to {self._operands[memory]} in place "
                    f"({op}), which JAX assumes to be constant: clone it first"
                )
            self._written[memory] = tensor
        return op(*args, **kwargs)


def _draws(op: Any, args: Any, kwargs: Any) -> bool:
    if torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    for i, argument in enumerate(op._schema.arguments):  # attention draws only with dropout
        if argument.name == "dropout_p":
            given = args[i] if i < len(args) else kwargs.get(argument.name, argument.default_value)
            return given != 0
    return True


def _written(op: Any, args: Any, kwargs: Any) -> list[Tensor]:
    schema = op._schema
    written: list[Any] = []
    if schema.is_mutable:
        for i, argument in enumerate(schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                written += tree_leaves(args[i] if i < len(args) else kwargs.get(argument.name))
    training = _NORMS.get(schema.name)
    if training is not None and len(args) > training and args[training]:
        written += args[3:5]
    return [tensor for tensor in written if isinstance(tensor, Tensor)]


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
