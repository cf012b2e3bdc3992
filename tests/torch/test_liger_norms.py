"""DyT, PolyNorm and group norm of Liger-Kernel: originals in torch, and float64 gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from bridge.torch import liger

BEHIND = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


def _dyt(module: Any, x: Tensor) -> Tensor:
    y = torch.tanh(module.alpha * x) * module.gamma
    return y if module.beta is None else y + module.beta


def _poly_norm(module: Any, x: Tensor) -> Tensor:
    def norm(u: Tensor) -> Tensor:
        return u / (u.pow(2).mean(-1, keepdim=True) + module.variance_epsilon).sqrt()

    w = module.weight
    return w[0] * norm(x**3) + w[1] * norm(x**2) + w[2] * norm(x) + module.bias


def _group_norm(module: Any, x: Tensor) -> Tensor:
    return torch.nn.functional.group_norm(
        x, module.num_groups, module.weight, module.bias, module.eps
    )


CASES: dict[str, tuple[Callable[[], Any], Callable[..., Tensor], tuple[int, ...]]] = {
    "DyT": (lambda: liger.LigerDyT(33), _dyt, (2, 5, 33)),
    "DyT without beta": (lambda: liger.LigerDyT(64, False, 1.5), _dyt, (3, 64)),
    "PolyNorm": (lambda: liger.LigerPolyNorm(1e-5, in_place=False), _poly_norm, (2, 3, 41)),
    "GroupNorm": (lambda: liger.LigerGroupNorm(12, 3), _group_norm, (2, 12, 7)),
    "GroupNorm, one group": (
        lambda: liger.LigerGroupNorm(6, 1, 1e-5, True, "zeros"),
        _group_norm,
        (2, 6, 3, 4),
    ),
}


@pytest.mark.parametrize("dtype", BEHIND, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(case: str, dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    make, formula, shape = CASES[case]
    module = make()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    module.to(dtype)
    wide = make()
    wide.load_state_dict(module.state_dict())
    wide.double()
    x, g = torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
    results = []
    for layer, run, kind in ((module, module, dtype), (wide, None, torch.float64)):
        given = x.detach().to(kind, copy=True).requires_grad_()
        y = run(given) if run is not None else formula(layer, given)
        y.backward(g.to(kind))
        results.append([y.detach(), given.grad, *(p.grad for p in layer.parameters())])
    for found, expected in zip(*results, strict=True):
        assert found.dtype == dtype
        scale = expected.abs().max()
        assert (found.double() - expected).abs().max() <= BEHIND[dtype] * scale


def test_functions_and_names() -> None:
    x = torch.randn(2, 6)
    assert list(liger.LigerDyT(6).state_dict()) == ["alpha", "gamma", "beta"]
    assert list(liger.LigerPolyNorm().state_dict()) == ["weight", "bias"]
    assert list(liger.LigerGroupNorm(6, 2).state_dict()) == ["weight", "bias"]
    dyt, poly, group = liger.LigerDyT(6), liger.LigerPolyNorm(), liger.LigerGroupNorm(6, 2)
    assert torch.equal(dyt(x), liger.liger_dyt(x, dyt.alpha, dyt.gamma, dyt.beta))
    assert torch.equal(poly(x), liger.liger_poly_norm(x, poly.weight, poly.bias))
    y = liger.liger_group_norm(x, group.weight, group.bias, 6, 2, 1e-6)
    assert torch.equal(group(x), y)


@pytest.mark.parametrize("options", [{"init_fn": "normal"}, {"num_groups": 4}])
def test_refused(options: Any) -> None:
    with pytest.raises(AssertionError, match="expected"):
        liger.LigerGroupNorm(**{"num_channels": 6, "num_groups": 2, **options})
