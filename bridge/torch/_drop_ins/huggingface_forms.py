"""Which op computes what a layer of Hugging Face's does: found by trying it.

Some two hundred models have classes of their own for the same few formulas, and a name does not
tell a norm with weight from one with 1 + weight. So a layer's own `forward` runs on random rows of
several scales, in a copy that shares nothing with the layer, and an op stands in for it if it says
the same.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bridge.catalogue.gates import ACTIVATIONS
from bridge.torch._drop_ins.huggingface_layers import of_heads
from bridge.torch._ops.bias_gelu import bias_gelu
from bridge.torch._ops.gates import glu, squared_relu
from bridge.torch._ops.norms import layer_norm, rms_norm
from bridge.torch._ops.rotary import rotary

_EPS = ("variance_epsilon", "eps", "epsilon")
_GATED = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))
_PACKED = ("gate_up_proj", "down_proj")
_SCALES = (1e-3, 1.0, 30.0)
_ROWS = ((4,), (2, 3), (2, 1, 3))  # by which a norm of channels, which come second, is told
_TOLERANCES = {torch.float32: 2e-5, torch.bfloat16: 2.0**-6}


@dataclass(frozen=True)
class Form:
    """A layer's formula: `forward(layer, x)` computes it by an op that is called `name`."""

    name: str
    function: Callable[..., Tensor]
    constants: tuple[tuple[str, Any], ...] = field(default=())

    def forward(self, layer: Any, x: Tensor) -> Tensor:
        return self.function(layer, x, **dict(self.constants))


def _norm(
    layer: Any, x: Tensor, op: str, eps_name: str, offset: float, keeps_dtype: bool
) -> Tensor:
    weight, eps = layer._parameters.get("weight"), getattr(layer, eps_name)
    if op == "rms_norm":
        y = rms_norm(x, weight, eps=eps, offset=0.0 if weight is None else offset)
    else:
        y = layer_norm(x, weight, layer._parameters.get("bias"), eps=eps)
    return y.to(x.dtype) if keeps_dtype else y  # type: ignore[no-any-return]


def _gated(layer: Any, x: Tensor, parts: tuple[str, ...], activation: str) -> Tensor:
    *first, last = (getattr(layer, part) for part in parts)
    return last(glu(*(part(x) for part in first), activation=activation))  # type: ignore[no-any-return]


def _gelu(layer: Any, x: Tensor, approximate: str) -> Tensor:
    return bias_gelu(x, approximate=approximate)


def _squared_relu(layer: Any, x: Tensor) -> Tensor:
    return squared_relu(x)


def form_of(layer: nn.Module, wanted: Sequence[str]) -> Form | str | None:
    """The form of a layer; why it has none; or None of a layer that is of no wanted kind.

    Args:
      wanted: of "norms", "mlps" and "activations".
    """
    for kind, find in (("norms", _norm_trials), ("mlps", _mlp_trials), ("activations", _others)):
        if kind in wanted and (trials := find(layer)) is not None:
            if "forward" in vars(layer):
                return "it has a forward of its own, as hooks of other packages make"
            if not takes_one(type(layer).forward):
                return "its forward takes more than one argument"
            found = _first_alike(*trials)
            # Most activations are none of these, and nobody wonders.
            return None if kind == "activations" and isinstance(found, str) else found
    return None


def takes_one(forward: Callable[..., Any]) -> bool:
    """Whether a method takes one argument beside self, and can take no other."""
    kinds = [parameter.kind for parameter in inspect.signature(forward).parameters.values()]
    return kinds == [inspect.Parameter.POSITIONAL_OR_KEYWORD] * 2


# Copies of a layer, how long rows it takes, and what it may be.
_Trials = tuple[list[nn.Module], int, list[Form]]


def _norm_trials(layer: nn.Module) -> _Trials | None:
    parameters = dict(layer.named_parameters(recurse=False))
    names = [n for n in _EPS if isinstance(getattr(layer, n, None), float)]
    is_norm = parameters.keys() <= {"weight", "bias"} and all(
        p.ndim == 1 for p in parameters.values()
    )
    if not names or not is_norm or _has_parts(layer):
        return None
    size = parameters["weight"].numel() if "weight" in parameters else 16
    size = (getattr(layer, "normalized_shape", None) or (size,))[-1]
    copies = []
    for dtype in _TOLERANCES:
        numbers = [nn.Parameter(_numbers(size, dtype=dtype, seed=i)) for i in range(2)]
        copies.append(stand_in(layer, dict(zip(parameters, numbers, strict=False))))
    ops = [("rms_norm", 0.0), ("rms_norm", 1.0)] if "bias" not in parameters else []
    named = ("op", "offset", "keeps_dtype", "eps_name")
    forms = [
        Form(op, _norm, tuple(zip(named, (op, offset, keeps_dtype, names[0]), strict=True)))
        for (op, offset), keeps_dtype in itertools.product(
            [*ops, ("layer_norm", 0.0)], (False, True)
        )
    ]
    return copies, size, forms


def _mlp_trials(layer: nn.Module) -> _Trials | None:
    wide, narrow = 12, 8
    for parts in (*_GATED, _PACKED):
        linears = dict(layer.named_children())
        own = next(layer.parameters(recurse=False), None)
        if own is not None or not all(hasattr(linears.get(p), "weight") for p in parts):
            continue
        *first, last = parts
        columns = wide * 2 if parts is _PACKED else wide
        with torch.random.fork_rng([]), torch.device("cpu"):
            linears = {part: nn.Linear(narrow, columns) for part in first}
            linears[last] = nn.Linear(wide, narrow)
        copy = _copied(stand_in(layer, {}, linears))
        for seed, linear in enumerate(linears.values()):
            for parameter in linear.parameters():
                parameter.data = _numbers(*parameter.shape, seed=seed)
        forms = [
            Form(f"glu, {activation}", _gated, (("parts", parts), ("activation", activation)))
            for activation in ACTIVATIONS
        ]
        return [copy], narrow, forms
    return None


def _others(layer: nn.Module) -> _Trials | None:
    if type(layer).__module__ != "transformers.activations" and type(layer) is not nn.GELU:
        return None
    if next(layer.parameters(), None) is not None or _has_parts(layer):
        return None
    forms = [
        Form(f"bias_gelu, {approximate}", _gelu, (("approximate", approximate),))
        for approximate in ("tanh", "none", "sigmoid")
    ]
    return [stand_in(layer, {})], 64, [*forms, Form("squared_relu", _squared_relu)]


def _has_parts(layer: nn.Module) -> bool:
    children, buffers = layer.children(), layer.buffers()
    return next(children, None) is not None or next(buffers, None) is not None


def stand_in(
    layer: nn.Module, parameters: dict[str, Any], modules: dict[str, Any] | None = None
) -> Any:
    """A copy of a layer, with parameters and some modules of its own, that leaves it untouched."""
    copy = object.__new__(type(layer))
    copy.__dict__ = {
        **vars(layer),
        "_parameters": {**dict.fromkeys(vars(layer)["_parameters"]), **parameters},
        "_modules": {**vars(layer)["_modules"], **(modules or {})},
    }
    return copy


def _copied(layer: nn.Module) -> Any:
    """A copy of a layer and all its parts, of the same parameters."""
    parts = {name: _copied(part) for name, part in layer.named_children()}
    return stand_in(layer, vars(layer)["_parameters"], parts)


def _numbers(
    *shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float32, seed: int = 7
) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * scale).to(dtype)


def _first_alike(copies: list[nn.Module], size: int, forms: list[Form]) -> Form | str:
    """The first form that gives what the layer gives, wherever the layer gives something."""
    try:
        with _unseen(), torch.random.fork_rng([]):
            tried = list(_tried(copies, size))
            for form in forms:
                if all(_alike(x.dtype, y, form.forward(copy, x)) for copy, x, y in tried):
                    return form
    except Exception as error:
        return f"trying it failed: {type(error).__name__}: {error}"
    return "it computes something else"


@contextlib.contextmanager
def _unseen() -> Iterator[None]:
    """For calls on numbers of ours on the CPU, of which nobody else is to hear.

    An autocast around them would change their dtypes, and torch.stack and torch.cat refuse the
    other 16-bit type in it.
    """
    plain = torch.autocast("cpu", enabled=False)
    with torch.no_grad(), torch.device("cpu"), plain, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _tried(copies: list[nn.Module], size: int) -> Iterator[tuple[Any, Tensor, Tensor]]:
    """What the layer itself gives, in training and not, for dtypes that it takes together."""
    for dtype, scale, rows in itertools.product(_TOLERANCES, _SCALES, _ROWS):
        x = _numbers(*rows, size, scale=scale, dtype=dtype)
        for copy in copies:
            parts = [p.dtype for p in copy.parameters()]
            has_modules = next(copy.children(), None) is not None
            if len(rows) > 1 and has_modules:
                continue  # experts take tokens in one dimension
            if any(p != dtype for p in parts) and (has_modules or dtype == torch.float32):
                continue  # a linear layer takes one dtype, and no model mixes so
            for is_training in (False, True):
                copy.train(is_training)
                yield copy, x, type(copy).forward(copy, x)


def _alike(dtype: torch.dtype, expected: Tensor, found: Tensor) -> bool:
    """Whether both are the same numbers, but for what a layer rounds to this dtype on its way."""
    if expected.dtype != found.dtype or expected.shape != found.shape:
        return False
    bound = _TOLERANCES[dtype] * float(expected.abs().max())
    return bool(((expected - found).abs() <= bound).all())


def rotary_of(
    modules: set[str],
) -> Iterator[tuple[Any, Callable[..., Any], Callable[..., Any] | str]]:
    """The rotary embeddings of Python modules: (module, function, the one by bridge or why not)."""
    for name in sorted(modules):
        original = vars(sys.modules.get(name, types)).get("apply_rotary_pos_emb")
        if isinstance(original, types.FunctionType):
            yield sys.modules[name], original, _rotary_like(original)


def _rotary_like(original: Callable[..., Any]) -> Callable[..., Any] | str:
    parameters = inspect.signature(original).parameters
    turned = [name for name in parameters if name not in ("cos", "sin", "unsqueeze_dim")]
    if list(parameters) != [*turned, "cos", "sin", "unsqueeze_dim"] or len(turned) not in (1, 2):
        return "its arguments are others"
    default = parameters["unsqueeze_dim"].default
    forms = list(itertools.product((False, True), repeat=2))
    try:
        with _unseen():
            for in_pairs in (False, True):
                tried = list(_tried_rotary(original, len(turned), in_pairs))
                for form in forms:
                    found = _rotary_by([*parameters], len(turned), default, in_pairs, *form)
                    if all(
                        _alike(dtype, *pair)
                        for dtype, given, expected in tried
                        for pair in zip(expected, _tuple(found(*given)), strict=True)
                    ):
                        return found
    except Exception as error:
        return f"trying it failed: {type(error).__name__}: {error}"
    return "it computes something else"


def _tuple(found: Any) -> tuple[Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


def _tried_rotary(
    original: Callable[..., Any], count: int, in_pairs: bool
) -> Iterator[tuple[Any, Any, Any]]:
    """What it gives on doubled tables: in halves, as most models make them, or in pairs."""
    for columns, of_x, of_tables in itertools.product((8, 4), _TOLERANCES, _TOLERANCES):
        halves = [_numbers(2, 5, columns // 2, dtype=of_tables, seed=i) for i in range(2)]
        tables = [torch.stack((half, half), -1 if in_pairs else -2).flatten(-2) for half in halves]
        for heads, shapes in ((1, ((2, 3, 5, 8), (2, 1, 5, 8))), (2, ((2, 5, 3, 8), (2, 5, 1, 8)))):
            xs = [_numbers(*shape, dtype=of_x) for shape in shapes[:count]]
            try:
                found = original(*xs, *tables, heads)
            except RuntimeError:
                if columns == 8:
                    raise
                continue  # tables for a part of the columns are not for each model
            narrower = torch.bfloat16 if torch.bfloat16 in (of_x, of_tables) else torch.float32
            yield narrower, (*xs, *tables, heads), _tuple(found)


def _rotary_by(
    names: list[str],
    count: int,
    default: int,
    in_pairs: bool,
    interleaved: bool,
    keeps_dtype: bool,
) -> Callable[..., Any]:
    def apply_rotary_pos_emb(*given: Any, **named: Any) -> Any:
        named.update(zip(names, given, strict=False))
        heads = named.get("unsqueeze_dim", default)
        tables = [
            named[name][..., ::2].unsqueeze(heads) if in_pairs else of_heads(named[name], heads)
            for name in ("cos", "sin")
        ]
        found = []
        for name in names[:count]:
            y = rotary(named[name], *tables, interleaved=interleaved)
            found.append(y.to(named[name].dtype) if keeps_dtype else y)
        return tuple(found) if count > 1 else found[0]

    return apply_rotary_pos_emb
