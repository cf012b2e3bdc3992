"""One input, the same bits by every way that torch can take."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.autograd import grad

from bridge.torch import bias_gelu, bias_gelu_
from tests.torch.expected import DTYPES, assert_same_bits


def in_threads(x: Any, bias: Any) -> Any:
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda _: bias_gelu(x, bias), range(8)))[-1]


ROUTES: dict[str, Callable[..., Any]] = {
    "compiled": lambda x, b: torch.compile(bias_gelu, fullgraph=True, backend="aot_eager")(x, b),
    "dispatcher": lambda x, b: torch.ops.bridge.bias_gelu(
        x, b, form="tanh", order=0, full=str(x.dtype)[6:], row=None, batch_ndim=0
    ),
    "vmap over rows": lambda x, b: torch.func.vmap(bias_gelu, in_dims=(0, None))(x, b),
    "vmap over both": lambda x, b: torch.func.vmap(bias_gelu)(x[None], b[None])[0],
    "in place": lambda x, b: bias_gelu_(x * 1.0, b),
    "copy": lambda x, b: bias_gelu(x.mT.contiguous().mT, b),
    "deterministic": lambda x, b: with_determinism(x, b),
    "from threads": in_threads,
    "in pieces": lambda x, b: torch.cat([bias_gelu(part, b) for part in x.split(100)]),
}


def with_determinism(x: Any, bias: Any) -> Any:
    torch.use_deterministic_algorithms(True)
    try:
        return bias_gelu(x, bias)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_same_bits(draw: Any, two_threads: None, route: str, dtype: torch.dtype) -> None:
    x, bias, g = draw(300, 77, dtype=dtype), draw(77, dtype=dtype), draw(300, 77, dtype=dtype)
    x.requires_grad_()
    bias.requires_grad_()
    torch.set_num_threads(1)
    expected = bias_gelu(x, bias)
    gradients = grad(expected, (x, bias), g)
    torch.set_num_threads(2)
    y = ROUTES[route](x, bias)
    assert_same_bits(y, expected)
    if route == "in pieces":  # the bias gradient is then a sum of sums
        assert_same_bits(grad(y, x, g)[0], gradients[0])
    else:
        for one, other in zip(grad(y, (x, bias), g), gradients, strict=True):
            assert_same_bits(one, other)
    with torch.no_grad():
        assert_same_bits(ROUTES[route](x, bias), expected)
        assert_same_bits(bias_gelu(x, bias, out=torch.empty_like(x)), expected)
