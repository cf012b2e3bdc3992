"""The op of `tests.any_results` in torch, while a test runs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from bridge.ops import OPS
from bridge.torch._adapter import dispatcher, dispatcher_rules
from bridge.torch._adapter.kernels import Kernel
from tests.any_results import ANY_RESULTS, AnyParams, computed


@contextlib.contextmanager
def installed() -> Iterator[list[AnyParams]]:
    """Lets the op run without a kernel; gives the parameters of its calls."""
    params: list[AnyParams] = []
    run, add_to = Kernel.run, Kernel.add_to

    def run_anything(self: Kernel, operands: Any, results: Any = None) -> Any:
        if self.op is not ANY_RESULTS or operands[0].is_meta:
            return run(self, operands, results)
        params.append(self.params)
        return computed(operands, self.params)

    def add_others(self: Kernel, native: Any) -> None:
        if self.op is not ANY_RESULTS:
            add_to(self, native)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Kernel, "run", run_anything)
        patch.setattr(Kernel, "add_to", add_others)
        patch.setitem(OPS, ANY_RESULTS.name, ANY_RESULTS)
        patch.setitem(dispatcher.overloads, (ANY_RESULTS.name, None), overload())
        yield params


@functools.cache
def overload() -> Any:
    """The dispatcher op, which stays."""
    defined = dispatcher._define(ANY_RESULTS, None)
    kernel = dispatcher_rules._autograd(ANY_RESULTS, defined)
    dispatcher.library.impl(defined, kernel, "Autograd", with_keyset=True)
    vmap = dispatcher_rules._vmap(ANY_RESULTS)
    torch.library.register_vmap(defined, vmap, lib=dispatcher.library)
    return defined
