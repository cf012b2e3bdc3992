"""Random programs and calls, each generated from a number.

hypothesis does not do the search: its programs mostly have few operations. A program with fewer
steps equals the first steps of the program with the same number: in this way a failing program is
shrunk.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from bridge.lang import functions as f
from bridge.lang import roles
from bridge.lang.active import while_active
from bridge.lang.program import AXES, COLUMNS, ROWS, Operand, Program, Result, pruned
from bridge.lang.values import Builder, Value
from tests.frameworks import DTYPES, numpy_dtype

COLUMN_COUNTS = (7, 7, 1, 2, 3, 33, 33, 64, 64, 100, 511, 513, 256, 0, 1025, 2500)
ROW_COUNTS = (1, 3, 3, 2, 5, 17, 17, 40, 40, 131, 131, 0)
MOST_ELEMENTS = (5_000, 5_000, 5_000, 5_000, 120_000)
# One in this many calls has a few rows so long that their columns are divided among threads.
LONG_ROWS_ONE_IN = 24
LONG_SPACES = ((65_536,), (1, 70_001), (2, 70_001))
MOST_STEPS = 30

FLOATS = (2.0, 1.0, -1.0, 0.5, 0.0, -0.0, 1e-3, 3.0, 1e30, math.inf, -math.inf, math.nan)
INTEGERS = (1, 0, 2, -1, 5, 100, 2**31, 2**63 - 1)
LABELS = ("int64", "int32", "uint8", "int8", "int16", "uint16", "uint32", "uint64")

# Kinds of numbers of an operand; repeated kinds are drawn more often.
KINDS = ("normal", "normal", "normal", "few", "wide", "special", "constant")
# Memory layouts of tensors.
LAYOUTS = ("contiguous", "contiguous", "transposed", "strided", "expanded", "offset")


@dataclass(frozen=True)
class Array:
    """The shape, dtype and distribution of an array of a call."""

    shape: tuple[int, ...]
    dtype: str
    kind: str
    layout: str


@dataclass(frozen=True)
class RandomCall:
    """A program and the arguments of its call.

    Attributes:
      operands: one for each operand of the program; the shapes of tangents and results follow.
      moved: the operands with a tangent.
      wanted: the operands with a cotangent.
      given: the results with a cotangent.
      seed: the seed of the numbers.
    """

    program: Program
    operands: tuple[Array, ...]
    moved: tuple[bool, ...]
    wanted: tuple[bool, ...]
    given: tuple[bool, ...]
    seed: int

    def __str__(self) -> str:
        lines = [str(self.program)]
        lines += [
            f"  {operand.name}: {array}"
            for operand, array in zip(self.program.operands, self.operands, strict=True)
        ]
        lines += [f"  moved {self.moved}, wanted {self.wanted}, given {self.given}"]
        return "\n".join([*lines, f"  numbers of seed {self.seed}"])


# ---- Programs ----

T = TypeVar("T")


class Draws(random.Random):
    """Random choices from one number."""

    def late(self, values: Sequence[T]) -> T:
        """Returns one of the values, later ones more often, so that programs are deep."""
        return values[-1 - min(self.randrange(len(values)), self.randrange(len(values)))]

    def coin(self) -> bool:
        return self.random() < 0.5

    def value(self, builder: Builder, values: Sequence[Value]) -> Value:
        """Returns one of the values, mostly an unused one, so that few stay unused."""
        used = {number for node in builder.nodes for number in node.inputs}
        fresh = [value for value in values if value.number not in used]
        return self.late(fresh if fresh and self.random() < 0.7 else values)


_UNARY = (
    *("tanh", "sigmoid", "neg", "abs", "exp", "silu", "softplus", "erf", "sqrt", "rsqrt"),
    *("exp2", "expm1", "log", "log1p", "sin", "cos"),
)
_BINARY = ("add", "sub", "mul", "div", "minimum", "maximum")
_STEPS = (
    *("binary", "binary", "binary", "unary", "unary", "unary", "sum", "mean", "max", "where"),
    *("constant", "compare", "fma", "logsumexp", "gelu", "gauss", "argmax", "column", "columns"),
    *("compare", "integer", "integer constant", "logic", "keep", "integer where"),
    "log_softmax",
)


def _step(draws: Draws, builder: Builder, values: list[Value]) -> Value | None:
    """Returns a new value computed from existing ones; None if there are no suitable ones."""

    def pick(*dtypes: str) -> Value | None:
        found = [value for value in values if value.kind in dtypes]
        return draws.value(builder, found) if found else None

    def apply(operation: str, *inputs: Value | None, static: Any = None) -> Value | None:
        if any(value is None for value in inputs):
            return None
        return builder.apply(operation, *inputs, static=static)

    step = draws.choice(_STEPS)
    if step == "unary":
        return apply(draws.choice(_UNARY), pick("float", "int"))
    if step == "binary":
        return apply(draws.choice(_BINARY), pick("float", "int"), pick("float"))
    if step in ("sum", "max", "argmax"):
        return apply(step, pick("float", "int"))
    if step in ("mean", "log_softmax", "logsumexp"):
        return getattr(f, step)(pick("float"))
    if step == "fma":
        return apply("fma", pick("float"), pick("float"), pick("float"))
    if step == "gelu":
        static = (draws.choice(f.GELU_KINDS), draws.randrange(3))
        return apply("gelu", pick("float"), static=static)
    if step == "gauss":
        return f.gauss(pick("float"), halved=draws.coin())
    if step == "where":
        return apply("where", pick("bool"), pick("float"), pick("float", "int"))
    if step == "compare":
        kinds = draws.choice([("float",), ("float", "int"), ("int",)])
        name = draws.choice(["lt", "le", "eq", "ne"])
        return apply(name, pick(*kinds), pick(*kinds))
    if step == "logic":
        name = draws.choice(["and", "or", "not"])
        return apply(name, *[pick("bool") for _ in range(1 if name == "not" else 2)])
    if step == "constant":
        return builder.constant(draws.choice(FLOATS))
    if step == "integer constant":
        return builder.constant(draws.choice(INTEGERS))
    if step == "column":
        return f.column()
    if step == "columns":
        return f.columns()
    if step == "integer":
        name = draws.choice(["add", "sub", "mul", "neg"])
        return apply(name, *[pick("int") for _ in range(1 if name == "neg" else 2)])
    if step == "integer where":
        return apply("where", pick("bool"), pick("int"), pick("int"))
    seeds = [value for value in values if value.kind == "int" and not value.axes]
    if not seeds:
        return None
    chosen = [draws.choice(seeds) for _ in range(2)]
    return f.dropout_keep(draws.choice([0.25, 0.0, 0.9, 0.999]), *chosen)


def _results(draws: Draws, builder: Builder, values: list[Value]) -> list[Result]:
    found = [value for value in values if value.kind == "float"]

    def pick(has_rows: bool = True) -> Value:
        value = draws.value(builder, found) if results else found[-1]
        # A value equal for all rows cannot be a result by itself.
        return (
            value if value.axes & ROWS or not has_rows else builder.apply("add", values[0], value)
        )

    results = []
    for place in range(draws.randint(1, 3)):
        kind = draws.choice(["plain", "plain", "column sum", "halves"])
        if kind == "column sum":
            role, chosen = roles.Row, [pick(has_rows=False)]
        elif kind == "halves":
            role, chosen = _double(draws.random()), [pick(), pick()]
        else:
            chosen = [pick()]
            role = roles.Full if chosen[0].axes & COLUMNS else roles.PerRow
        results.append(Result(role, tuple(v.number for v in chosen), name=f"result {place}"))
    return results


def _double(part: float) -> Any:
    return roles.Halves if part < 0.6 else roles.Pairs


def steps_of(number: int) -> int:
    """Returns the number of steps of a number's program."""
    return Draws(f"{number} count").randint(1, MOST_STEPS)


def random_program(number: int, steps: int) -> Program:
    """Returns the program of a number after `steps` of its steps."""
    builder = Builder()
    draws = Draws(f"{number} operands")
    first = draws.choice([roles.Full, roles.Full, roles.Halves])
    operands, values = [], []
    left_out = (
        roles.Pairs,
        roles.Quantized,
        roles.Scale,
        *roles.OF_BLOCKS.values(),
        roles.Segments,
    )
    kinds = [r for r in roles.ANNOTATIONS if r not in left_out]
    others = draws.choices(kinds, k=draws.randint(0, 4))
    for position, role in enumerate([first, *others]):
        if role is roles.Halves:
            role = _double(draws.random())
        operands.append(Operand(f"p{position}", role))
        for half in range(2 if role in roles.DOUBLE else 1):
            values.append(builder.operand(position, half, AXES[role], operands[-1].dtype))

    def write() -> list[Result]:
        draws = Draws(f"{number} steps")
        for _ in range(steps):
            value = _step(draws, builder, values)
            if value is not None:
                values.append(value)
        return _results(Draws(f"{number} results"), builder, values)

    results = while_active(builder, write)
    return pruned("random", operands, builder.nodes, results)


# ---- Calls ----


def _space(draws: Draws) -> tuple[int, ...]:
    columns = draws.choice(COLUMN_COUNTS)
    most = draws.choice(MOST_ELEMENTS)
    rows = []
    for _ in range(draws.randint(0, 3)):
        size = draws.choice(ROW_COUNTS)
        rows.append(size if math.prod(rows) * size * columns <= most else 1)
    return (*rows, columns)


def _shape(draws: Draws, role: Any, space: tuple[int, ...]) -> tuple[int, ...]:
    if role in (roles.Table, roles.Mask):
        own = space[draws.randint(0, len(space)) :]
        return tuple(draws.choice([size, 1]) for size in own)
    return {
        roles.Full: space,
        roles.Row: space[-1:],
        **dict.fromkeys(roles.DOUBLE, (*space[:-1], 2 * space[-1])),
        roles.Integer: (),
    }.get(role, space[:-1])


def _dtype(draws: Draws, operand: Operand) -> str:
    if operand.role is roles.Integer:
        return "int64"
    if operand.dtype == "int":
        return draws.choice(LABELS)
    return draws.choice(["bool", "uint8"] if operand.dtype == "bool" else DTYPES)


def random_call(number: int, steps: int) -> RandomCall:
    """Returns a program, shapes, dtypes, layouts, and the wanted derivatives."""
    program, draws = random_program(number, steps), Draws(f"{number} arrays")
    space = _space(draws)
    long = Draws(f"{number} long rows")
    if long.randrange(LONG_ROWS_ONE_IN) == 0:
        space = long.choice(LONG_SPACES)
    floating = draws.choice([*DTYPES, "float32", ""])  # the same for all, or mixed
    operands = []
    for operand in program.operands:
        dtype = _dtype(draws, operand)
        operands.append(
            Array(
                _shape(draws, operand.role, space),
                floating if operand.dtype == "float" and floating else dtype,
                draws.choice(KINDS),
                draws.choice(LAYOUTS),
            )
        )

    def some(allowed: list[bool]) -> tuple[bool, ...]:
        drawn = [is_allowed and draws.coin() for is_allowed in allowed]
        return tuple(drawn) if any(drawn) else tuple(allowed)

    smooth = [operand.dtype == "float" for operand in program.operands]
    return RandomCall(
        program,
        tuple(operands),
        some(smooth),
        some(smooth),
        some([True] * len(program.results)),
        number,
    )


# ---- Arrays ----

_SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-310, 6e-8, 1e-7, 80.0, -110.0, 3e4, 1e38)


def _numbers(rng: np.random.Generator, array: Array) -> Any:
    shape = array.shape
    if array.dtype == "bool":
        return rng.random(shape) < 0.4
    if not array.dtype.startswith(("float", "bfloat")):
        if array.kind == "wide":
            info = np.iinfo(array.dtype)
            return rng.integers(info.min, info.max, shape, array.dtype, endpoint=True)
        return rng.integers(0, 3 if array.kind == "few" else 40, shape)
    if array.kind == "constant":
        return np.full(shape, rng.choice([0.0, 1.0, -2.0, rng.normal()]))
    if array.kind == "few":
        return rng.integers(-2, 3, shape) * 0.5
    numbers = rng.normal(size=shape)
    if array.kind == "wide":
        numbers = numbers * 2.0 ** rng.integers(-30, 12, shape)
    if array.kind == "special" and numbers.size:
        places = rng.integers(0, numbers.size, max(1, numbers.size // 20))
        numbers.reshape(-1)[places] = rng.choice(_SPECIAL, places.size)
    return numbers


def drawn(rng: np.random.Generator, array: Array) -> Any:
    """Returns a NumPy array; an expanded one is constant along a dimension."""
    with np.errstate(all="ignore"):
        numbers = np.asarray(_numbers(rng, array)).astype(numpy_dtype(array.dtype))
    if array.layout == "expanded" and array.shape and numbers.size:
        axis = int(rng.integers(numbers.ndim))
        numbers = np.repeat(numbers.take([0], axis), array.shape[axis], axis)
    return numbers


def laid_out(rng: np.random.Generator, tensor: Any, layout: str) -> Any:
    """Returns a tensor with the same numbers in another memory layout."""
    import torch

    if not tensor.ndim or not tensor.numel():
        return tensor
    axis = int(rng.integers(tensor.ndim))
    if layout == "transposed":
        order = rng.permutation(tensor.ndim).tolist()
        return tensor.permute(order).contiguous().permute(np.argsort(order).tolist())
    if layout == "strided":
        wide = torch.zeros([size * (1 + (d == axis)) for d, size in enumerate(tensor.shape)])
        wide = wide.to(tensor.dtype)
        view = wide[tuple(slice(None, None, 1 + (d == axis)) for d in range(tensor.ndim))]
        return view.copy_(tensor)
    if layout == "expanded":
        for d in range(tensor.ndim):
            first = tensor.narrow(d, 0, 1)
            # Compare bytes: a NaN is not equal to itself.
            if (
                tensor.view(torch.uint8) == first.expand_as(tensor).contiguous().view(torch.uint8)
            ).all():
                return first.clone().expand_as(tensor)
        return tensor
    if layout == "offset":
        flat = torch.zeros(tensor.numel() + 3, dtype=tensor.dtype)[3:]
        return flat.view(tensor.shape).copy_(tensor)
    return tensor
