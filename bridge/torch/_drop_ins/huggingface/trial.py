"""Trials of a layer: its own `forward` and an op run on the same random rows.

A trial works on a copy that shares nothing with the layer, on the CPU, without autograd, and with
its own random numbers.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_SCALES = (1e-3, 1.0, 30.0)
_ROWS = ((4,), (2, 3), (2, 1, 3))  # they reveal a norm over channels, which are dimension 1
TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 2.0**-6}
FAILED = "trying it failed: {}: {}"
ELSE = "it computes something else"
HOOKED = "its forward was replaced, as hooks of other packages do"
COMPUTED = "its weight is computed from other parameters: call replace before setting that up"


@dataclass(frozen=True)
class Form:
    """A layer's formula: `forward(layer, x)` computes it by the op named `name`.

    With `inner`, the layer keeps its own `forward`, in which `super()` is this class.
    """

    name: str
    function: Callable[..., Tensor]
    constants: tuple[tuple[str, Any], ...] = field(default=())
    inner: type | None = None

    def forward(self, layer: Any, *given: Any, **named: Any) -> Tensor:
        return self.function(layer, *given, **named, **dict(self.constants))


class Trials(NamedTuple):
    """Copies of a layer, the length of the rows that it takes, and the forms that it may have.

    `counts` has the numbers of arguments that calls may have: a gate may be absent.
    """

    copies: list[nn.Module]
    size: int
    forms: list[Form]
    counts: tuple[int, ...] = (1,)


class _Tried(NamedTuple):
    copy: Any
    training: bool
    given: tuple[Tensor, ...]
    expected: Tensor


def argument_names(forward: Callable[..., Any]) -> list[str] | None:
    """Returns the names of a method's arguments without self; None if one is keyword-only or *."""
    _, *parameters = inspect.signature(forward).parameters.values()
    plain = all(p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for p in parameters)
    return [p.name for p in parameters] if plain else None


def has_parts(layer: nn.Module) -> bool:
    """True for a layer that has modules or buffers."""
    children, buffers = layer.children(), layer.buffers()
    return next(children, None) is not None or next(buffers, None) is not None


def is_computed(layer: nn.Module, name: str) -> bool:
    """True if pruning, weight norm or a parametrization computes the attribute."""
    parametrized = getattr(layer, "parametrizations", {})
    own = {n for n, _ in layer.named_parameters(recurse=False)}
    return name in parametrized or bool(own & {f"{name}_orig", f"{name}_g"})


def stand_in(
    layer: nn.Module, parameters: dict[str, Any], modules: dict[str, Any] | None = None
) -> Any:
    """Returns a copy of a layer with other parameters and modules; the layer does not change."""
    copy = object.__new__(type(layer))
    copy.__dict__ = {
        **vars(layer),
        "_parameters": {**dict.fromkeys(vars(layer)["_parameters"]), **parameters},
        "_modules": {**vars(layer)["_modules"], **(modules or {})},
    }
    return copy


def copied(layer: nn.Module) -> Any:
    """Returns a copy of a layer and all its parts, with the same parameters."""
    parts = {name: copied(part) for name, part in layer.named_children()}
    return stand_in(layer, vars(layer)["_parameters"], parts)


def numbers(
    *shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float32, seed: int = 7
) -> Tensor:
    """Returns normal random numbers on the CPU."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return (torch.randn(shape, generator=generator, device="cpu") * scale).to(dtype)


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """A context for trials on the CPU that have no effect outside.

    Autocast is off: it would change dtypes, and under it torch.stack and torch.cat refuse the other
    16-bit dtype. The default device is the CPU, for new tensors.
    """
    plain = torch.autocast("cpu", enabled=False)
    random, on_cpu = torch.random.fork_rng([]), torch.device("cpu")
    with torch.no_grad(), on_cpu, plain, random, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def first_alike(trials: Trials) -> Form | str:
    """Returns the first form that gives the layer's results on all trials, or why none does."""
    try:
        tried = list(_tried(trials))
        for form in trials.forms:
            if all(_agrees(form, *each) for each in tried):
                return form
    except Exception as error:
        return FAILED.format(type(error).__name__, error)
    return ELSE


def _tried(trials: Trials) -> Iterator[_Tried]:
    """Yields results of the layer itself, in training mode and not, for the dtypes it takes."""
    for copy, dtype, scale, rows, count in itertools.product(
        trials.copies, TOLERANCES, _SCALES, _ROWS, trials.counts
    ):
        has_modules = next(copy.children(), None) is not None
        if len(rows) > 1 and has_modules:
            continue  # experts take tokens in one dimension
        is_mixed = any(p.dtype != dtype for p in copy.parameters())
        if is_mixed and has_modules:
            continue  # a linear layer takes one dtype
        shape = *rows, trials.size
        given = tuple([numbers(*shape, scale=scale, dtype=dtype, seed=7 + i) for i in range(count)])
        for training in (False, True):
            try:
                expected = _run(copy, training, type(copy).forward, *given)
            except (RuntimeError, TypeError, AttributeError):
                # Torch's norms refuse 16-bit weights with float32 rows; some gates are required.
                if is_mixed or count < max(trials.counts):
                    break
                raise
            yield _Tried(copy, training, given, expected)


def _run(copy: Any, training: bool, forward: Callable[..., Tensor], *given: Tensor) -> Tensor:
    copy.train(training)
    torch.default_generator.manual_seed(5)  # for dropout; torch.manual_seed would seed GPUs too
    return forward(copy, *given)


def _agrees(
    form: Form, copy: Any, training: bool, given: tuple[Tensor, ...], expected: Tensor
) -> bool:
    narrow = min((given[0].dtype, expected.dtype), key=lambda dtype: dtype.itemsize)
    return alike(narrow, expected, _run(copy, training, form.forward, *given))


def alike(dtype: torch.dtype, expected: Tensor, found: Tensor) -> bool:
    """True for equal numbers, up to roundings to this dtype inside a layer."""
    if expected.dtype != found.dtype or expected.shape != found.shape:
        return False
    bound = TOLERANCES[dtype] * float(expected.abs().max())
    return bool(((expected - found).abs() <= bound).all())
