"""The same input has the same bits on every path through torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import pytest
import torch
from torch.autograd import grad

from bridge.catalogue.bias_gelu import bias_gelu as declared
from bridge.torch import bias_gelu, bias_gelu_
from tests.torch.expected import DTYPES, assert_same_bits


def in_threads(x: Any, bias: Any) -> Any:
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda _: bias_gelu(x, bias), range(8)))[-1]


ROUTES: dict[str, Callable[..., Any]] = {
    "compiled": lambda x, b: torch.compile(bias_gelu, fullgraph=True, backend="aot_eager")(x, b),
    "dispatcher": lambda x, b: torch.ops.bridge.program(
        x, b, **asdict(declared.entry("torch").prepare(x, b))
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


def test_a_torch_without_backward_classes() -> None:
    """Calls are right without the fast path into backward.

    The name exists again before the first call, because this torch needs it.
    """
    program = """
import torch
from torch.autograd.function import FunctionMeta

hidden, make = {}, FunctionMeta.__init__

def hide(cls):
    hidden[cls] = cls._backward_cls
    del cls._backward_cls
    for derived in cls.__subclasses__():
        hide(derived)

def make_without(cls, *arguments):
    make(cls, *arguments)
    hide(cls)

hide(torch.autograd.Function.__mro__[1])  # the first with that type
FunctionMeta.__init__ = make_without
from bridge.torch import bias_gelu
from bridge.torch._adapter.autograd_functions import apply_of
apply = apply_of("bias_gelu")
function = apply.__self__
FunctionMeta.__init__ = make
for cls, backward in hidden.items():
    cls._backward_cls = backward
assert "apply" not in vars(function._backward_cls)

x, bias = (torch.randn(n, dtype=torch.float64, requires_grad=True) for n in ((3, 4), 4))
assert torch.autograd.gradcheck(bias_gelu, (x, bias))
assert torch.autograd.gradgradcheck(bias_gelu, (x, bias))
assert apply_of("bias_gelu") is apply
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_the_short_way_into_backward() -> None:
    """The cases left out above run if torch has the name."""
    from bridge.torch._adapter.autograd_functions import apply_of

    assert "apply" in vars(apply_of("bias_gelu").__self__._backward_cls)
