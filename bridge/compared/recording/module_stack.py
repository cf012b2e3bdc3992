"""The modules of torch that are running, by which a value says where it was made."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn
from torch.nn.modules import module as modules


class ModuleStack:
    """The modules whose forward functions are running, innermost last."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.stack: list[tuple[str, str]] = []

    def current(self) -> tuple[str, str]:
        return self.stack[-1] if self.stack else ("", "")

    @contextlib.contextmanager
    def watch(self, models: list[nn.Module], others: Mapping[str, Any]) -> Iterator[None]:
        """Follows calls of modules while it is entered.

        Args:
          models: the modules of the model.
          others: modules beside them, by the variable's name.
        """
        layers = {name: [m] for name, m in others.items() if isinstance(m, nn.Module)}
        named = {"": models, **layers}
        for prefix, beside in named.items():
            for model in beside:
                for name, module in model.named_modules(prefix=prefix):
                    self.names.setdefault(id(module), name)

        def enter(module: nn.Module, args: Any) -> None:
            self.stack.append((self.names.get(id(module), ""), type(module).__name__))

        def leave(module: nn.Module, args: Any, result: Any) -> None:
            if self.stack:
                self.stack.pop()

        first = modules.register_module_forward_pre_hook(enter)
        second = modules.register_module_forward_hook(leave, always_call=True)
        try:
            yield
        finally:
            first.remove()
            second.remove()
