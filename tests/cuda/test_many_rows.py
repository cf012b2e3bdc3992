"""Column sums with so many rows that threads add several rows one after another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import bridge
from bridge import _native
from tests.cuda.devices import needs_gpu
from tests.lang import declarations

pytestmark = needs_gpu

OPS = {name: bridge.op(getattr(declarations, name)) for name in ("rms_norm", "layer_norm")}
# Rows that stay in registers, short ones, aligned and not, long ones of any strides, and a partial
# last leaf.
SHAPES = [(4101, 4096), (2050, 8192), (1100, 16384), (140_003, 128), (70_000, 250), (17_001, 1001)]


def operands(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    random = np.random.default_rng(len(name) + shape[0])
    roles = [each.role for each in OPS[name].declaration.parameters]
    shapes = [shape[-1:] if role is bridge.Row else shape for role in roles]
    return [torch.from_numpy(random.standard_normal(s, np.float32)).to(dtype) for s in shapes]


def gradients(name: str, values: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    values = [value.detach().requires_grad_() for value in values]
    y = OPS[name](*values)
    return torch.autograd.grad(y, values, y.detach() * 0.5)


@pytest.mark.parametrize("is_compiled", [False, True], ids=["interpreted", "compiled"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", OPS)
def test_bits_of_the_cpu(name: str, dtype: torch.dtype, is_compiled: bool) -> None:
    torch.zeros(1, device="cuda")
    if is_compiled:
        OPS[name].compile("cuda", dtypes=[str(dtype).removeprefix("torch.")])
    try:
        for shape in SHAPES:
            values = operands(name, shape, dtype)
            before = _native.generated_calls()
            found = gradients(name, [value.cuda() for value in values])
            assert (_native.generated_calls() > before) == is_compiled
            for a, b in zip(found, gradients(name, values), strict=True):
                torch.testing.assert_close(a.cpu(), b, rtol=0, atol=0)
    finally:
        _native.forget_generated()


def test_batches() -> None:
    """Leaves start again in each batch."""
    (x, _), w = operands("rms_norm", (3, 1400, 4096), torch.float32), torch.ones(3, 4096)

    def towards_weight(x: Any, w: Any) -> Any:
        return torch.func.grad(lambda w: OPS["rms_norm"](x, w).square().sum())(w)

    batched = torch.func.vmap(towards_weight)
    found = batched(x.cuda(), w.cuda())
    assert torch.equal(found.cpu(), batched(x, w))
