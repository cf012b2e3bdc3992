"""Steps beside modes and subclasses of torch, in one graph, and steps that are refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from bridge.torch import optim


class Mode(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, given: Any = (), named: Any = None):  # type: ignore[no-untyped-def]
        return function(*given, **(named or {}))


class Named(torch.Tensor):
    """A tensor with the default `__torch_function__`."""


OURS = {
    "adamw": lambda p, **named: optim.AdamW(p, lr=0.1, amsgrad=True, **named),
    "momentum": lambda p, **named: optim.SGD(p, lr=0.1, momentum=0.9, **named),
}
both = pytest.mark.parametrize("name", OURS)


def drawn(seed: int, count: int = 2, kind: Any = torch.Tensor) -> list[torch.nn.Parameter]:
    rng = torch.Generator().manual_seed(seed)
    values = [torch.randn(3 + i, generator=rng) for i in range(count)]
    params = [torch.nn.Parameter(value.as_subclass(kind)) for value in values]
    for p, value in zip(params, values, strict=True):
        p.grad = (value * 2 + 1).as_subclass(kind)
    return params


def stepped(make: Callable[..., Any], kind: Any = torch.Tensor) -> list[torch.Tensor]:
    """Returns the parameters after two clipped steps, and the norm."""
    params = drawn(1, kind=kind)
    optimizer = make(params)
    for _ in range(2):
        norm = optim.clip_grad_norm_(params, 0.5)
        optimizer.step()
    return [x.detach().as_subclass(torch.Tensor) for x in (*params, norm)]


@both
@pytest.mark.parametrize("beside", ["mode", "device", "subclass"])
def test_modes_and_subclasses(name: str, beside: str) -> None:
    expected = stepped(OURS[name])
    if beside == "subclass":
        found = stepped(OURS[name], Named)
    else:
        with Mode() if beside == "mode" else torch.device("cpu"):
            found = stepped(OURS[name])
    assert all(map(torch.equal, found, expected))


@both
def test_one_graph(name: str) -> None:
    params, others = drawn(1, 10), drawn(1, 10)
    optimizer, other = OURS[name](params), OURS[name](others)
    torch.compiler.reset()
    step = torch.compile(optimizer.step, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        step()
        other.step()
    assert all(map(torch.equal, params, others))


def lose(name: str) -> Callable[[Any, Any], None]:
    return lambda optimizer, p: optimizer.state[p].pop(name)


def convert(optimizer: Any, p: Any) -> None:
    state = optimizer.state[p]
    state.update({name: x.double() for name, x in state.items() if name != "step"})


def grow(optimizer: Any, p: Any) -> None:
    p.data, p.grad = torch.ones(7), torch.ones(7)


def spread(optimizer: Any, p: Any) -> None:
    p.data = torch.ones(1).expand(4)


def overlap(optimizer: Any, p: Any) -> None:
    p.data, p.grad = torch.ones(4).as_strided((2, 2), (1, 1)), torch.ones(2, 2)
    optimizer.state.pop(p)


def overlap_state(optimizer: Any, p: Any) -> None:
    optimizer.state[p].update(exp_avg=torch.ones(1).expand(4))


CHANGES: list[tuple[str, Any, str]] = [
    ("adamw", ("lr", torch.ones(2)), "lr of group 1 has shape [2] and dtype float32, expected one"),
    ("adamw", ("lr", None), "lr of group 1 has type NoneType, expected a number"),
    ("adamw", ("lr", 1e40), "lr of group 1 is 1e+40, expected a number up to 3.4e+38"),
    ("adamw", ("weight_decay", 1e39), "weight_decay of group 1 is 1e+39, expected a number up to"),
    ("adamw", lose("step"), "group 1 has a state without step, expected its tensor"),
    ("adamw", ("weight_decay", "no"), "weight_decay of group 1 has type str, expected a number"),
    ("adamw", ("betas", (0.9, 1.5)), "betas[1] is 1.5, expected a number from 0 on, below 1"),
    ("adamw", ("eps", -1.0), "eps is -1.0, expected a finite number"),
    ("adamw", lose("max_exp_avg_sq"), "group 1 has a state without max_exp_avg_sq"),
    ("adamw", convert, "a state exp_avg of dtype float64, expected float32"),
    ("adamw", grow, "parameter 0 of group 1 has a state exp_avg of shape [4], expected [7]"),
    ("adamw", spread, "parameter 0 of group 1 has elements that share memory, expected memory of"),
    ("adamw", overlap, "parameter 0 of group 1 has elements that share memory, expected memory of"),
    ("adamw", overlap_state, "has a state exp_avg that has elements that share memory"),
    ("momentum", ("lr", torch.ones(2)), "lr of group 1 has shape [2] and dtype float32"),
    ("momentum", ("momentum", -1.0), "momentum is -1.0, expected a finite number from 0 on"),
    ("momentum", ("dampening", "no"), "dampening has type str, expected a number"),
    ("momentum", grow, "a state momentum_buffer of shape [4], expected [7]"),
]


@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_a_refused_step_writes_nothing(number: int) -> None:
    """The second group is bad, and the first one keeps its parameters and its state."""
    name, change, words = CHANGES[number]
    params = drawn(2)
    optimizer = OURS[name]([{"params": [p]} for p in params])
    optimizer.step()
    if callable(change):
        change(optimizer, params[1])
    else:
        optimizer.param_groups[1].update([change])
    before = copy.deepcopy((params, [optimizer.state[p] for p in params]))
    with pytest.raises((TypeError, ValueError)) as error:
        optimizer.step()
    assert words in str(error.value)
    assert all(map(torch.equal, params, before[0]))
    for p, old in zip(params, before[1], strict=True):
        assert optimizer.state[p].keys() == old.keys()
        assert all(torch.equal(value, old[key]) for key, value in optimizer.state[p].items())


@pytest.mark.parametrize(
    "gradient", [torch.ones(1).expand(4), torch.ones(5).as_strided((2, 2), (1, 1))]
)
def test_refused_clipping_writes_nothing(gradient: torch.Tensor) -> None:
    params = drawn(3)
    params[1].data = torch.zeros(gradient.shape)
    params[1].grad = gradient
    before = params[0].grad.clone()
    words = "clip_grad_norm_: the gradient of tensor 1 has elements that share memory"
    with pytest.raises(ValueError, match=words):
        optim.clip_grad_norm_(params, 0.1)
    assert torch.equal(params[0].grad, before)
