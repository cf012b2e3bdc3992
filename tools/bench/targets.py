"""Speed targets, and the means over rows that are compared with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from tools.bench import bias_gelu, softmax
from tools.bench.cases import CHAIN

Row = dict[str, Any]
PEERS = {"torch": ("eager", "compile"), "jax": ("jit",)}
PEER_NAMES = {"eager": "torch eager", "compile": "torch.compile", "jit": "jax.jit"}


@dataclass(frozen=True)
class Target:
    """A target value.

    Attributes:
      op: the name of the op.
      what: a description.
      value: the measured value; None if there is none.
      limit: the required value; `value` must be at least `limit`, or with `at_most` at most.
    """

    op: str
    what: str
    value: float | None
    limit: float
    unit: str = "×"
    at_most: bool = False

    @property
    def met(self) -> bool | None:
        if self.value is None:
            return None
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"met": self.met}


@dataclass(frozen=True)
class Line:
    """A line of the table of targets."""

    op: str
    what: str
    measured: str
    aim: str
    met: bool


def table(report: dict[str, Any]) -> list[Line]:
    """Returns the targets with a measured value, met or missed, in words."""
    lines = []
    for target in report["targets"]:
        if target["value"] is None:
            continue
        sign, unit = "≤" if target["at_most"] else "≥", target["unit"]
        measured, aim = f"{target['value']:.2f} {unit}", f"{sign} {target['limit']:g} {unit}"
        lines.append(Line(target["op"], target["what"], measured, aim, target["met"]))
    return lines


def geometric_mean(values: Iterable[float]) -> float | None:
    logarithms = [math.log(value) for value in values]
    return math.exp(sum(logarithms) / len(logarithms)) if logarithms else None


def speedups(rows: Iterable[Row], peer: str) -> list[float]:
    """Returns the speed of bridge relative to the peer, for each row with both."""
    return [row["speedup"][peer] for row in rows if peer in row["speedup"]]


def further_call(row: Row, name: str) -> float:
    """Returns the seconds of one more call inside one jit, from the row of a chain."""
    return (_median(row, f"{name} ×{CHAIN}") - _median(row, name)) / (CHAIN - 1)


def targets(rows: list[Row]) -> list[Target]:
    """Returns every target with its value in these rows."""
    found = []
    for op, of_op in _TARGETS.items():
        found += [Target(op, *target) for target in of_op([row for row in rows if row["op"] == op])]
    return found


def _of_bias_gelu(rows: list[Row]) -> Iterator[tuple[Any, ...]]:
    main = [row for row in rows if row["part"] == "main"]
    worst = min((min(row["speedup"].values()) for row in main if row["speedup"]), default=None)
    bfloat16_backward = _chosen(main, what="backward", dtype="bfloat16")
    yield "slowest row against the best peer of its framework", worst, 1.0
    yield "geometric mean over torch eager", geometric_mean(speedups(main, "eager")), 3
    yield "over torch.compile", geometric_mean(speedups(main, "compile")), 3
    yield "over jax.jit", geometric_mean(speedups(main, "jit")), 2
    over_jit = geometric_mean(speedups(bfloat16_backward, "jit"))
    yield "bfloat16 backward with bias gradient over jax.jit", over_jit, 5
    yield "large float32 forward into out=, of the speed of copy_", _of_copy(main), 70, "%"
    tiny = [row for row in rows if row["part"] == "tiny"]

    def first(what: str, value: Callable[[Row], float]) -> float | None:
        return next((value(row) for row in tiny if row["what"] == what), None)

    add = first("forward", lambda row: _median(row, "bridge") / _median(row, "add"))
    both = first("forward+backward", lambda row: row["speedup"]["eager"])
    yield "tiny torch call without grad, of one torch.add", add, 2, "×", True
    yield "tiny torch forward+backward over F.gelu(x + b)", both, 1
    further = first("chain", lambda row: further_call(row, "bridge") * 1e6)
    yield "further call inside one jit", further, 0.3, "µs", True
    yield from _in_jax(rows)


def _in_jax(rows: list[Row]) -> Iterator[tuple[Any, ...]]:
    """Yields the targets for the cost of calls: besides the op, outside jit, on sharded arrays."""
    for what, chosen, peer, limit in (
        ("call outside jit, of a jitted expression", _chosen(rows, what="outside jit"), "jit", 2),
        ("sharded, of shard_map by hand", _chosen(rows, part="sharded"), "shard_map", 1.2),
    ):
        ratio = max((_median(row, "bridge") / _median(row, peer) for row in chosen), default=None)
        yield what, ratio, limit, "×", True


def _of_copy(rows: list[Row]) -> float | None:
    found = _chosen(rows, what="forward", memory="old", dtype="float32", shape=bias_gelu.LARGE)
    for row in found:
        if "copy" in row["timings"]:
            return 100.0 * _median(row, "copy") / _median(row, "bridge")
    return None


def _of_softmax(rows: list[Row]) -> Iterator[tuple[Any, ...]]:
    main = [row for row in rows if row["part"] == "main"]
    hiding = [row for row in main if row["form"] in ("masked", "causal")]
    for what in ("forward", "backward"):
        for peer, limit in (("eager", 3), ("compile", 2), ("jit", 1.5)):
            mean = geometric_mean(speedups(_chosen(hiding, what=what), peer))
            yield f"masked and causal {what} over {PEER_NAMES[peer]}", mean, limit
    plain = speedups(_chosen(main, what="backward", form="plain"), "eager")
    yield "plain backward over ATen's", geometric_mean(plain), 1
    old = _chosen(main, memory="old")
    for what in ("forward", "backward"):
        causal, full = (
            _medians(_chosen(old, what=what, form=form, shape=softmax.LONG_SCORES), "torch")
            for form in ("causal", "plain")
        )
        ratio = causal[0] / full[0] if causal and full else None
        yield (
            f"causal {what} into out= at 2048 keys, of the time without a mask",
            ratio,
            0.6,
            "×",
            True,
        )
    yield from _in_jax(rows)
    growth = [row for row in rows if row["part"] == "growth"]
    shortest = [row for row in growth if row["shape"][-1] == softmax.GROWTH[0][-1]]
    of_first = _medians(shortest, "torch")
    worst = max(_medians(growth, "torch")) / of_first[0] if of_first else None
    yield (
        "as many elements in rows of 4 Ki to 1 Mi, of the time in rows of 1 Ki",
        worst,
        1.5,
        "×",
        True,
    )


def _of_bias_dropout_add(rows: list[Row]) -> Iterator[tuple[Any, ...]]:
    both = _chosen([row for row in rows if row["part"] == "main"], what="forward+backward")
    for peer in ("eager", "jit"):
        mean = geometric_mean(speedups(both, peer))
        yield f"forward+backward over {PEER_NAMES[peer]}", mean, 3
    yield from _in_jax(rows)


def _of_programs(rows: list[Row]) -> Iterator[tuple[Any, ...]]:
    main = [row for row in rows if row["part"] == "main"]
    for what in ("forward", "forward+backward"):
        for peer in ("compile", "jit"):
            mean = geometric_mean(speedups(_chosen(main, what=what), peer))
            yield f"{what} over {PEER_NAMES[peer]}", mean, 2.5
    compilers = [
        row["speedup"][peer]
        for row in main
        for peer in ("compile", "jit")
        if peer in row["speedup"]
    ]
    yield "slowest row against its framework's compiler", min(compilers, default=None), 1


def _of_linear_cross_entropy(rows: list[Row]) -> Iterator[tuple[Any, ...]]:
    main = [row for row in rows if row["part"] == "main"]
    for peer in ("eager", "jit"):
        most = max((1 / ratio for ratio in speedups(main, peer)), default=None)
        yield f"slowest row, of the time of {PEER_NAMES[peer]}", most, 1.1, "×", True
        taken = [row["memory_bytes"] for row in main if peer in row.get("memory_bytes", {})]
        parts = [of["bridge"]["peak"] / of[peer]["peak"] for of in taken]
        yield (
            f"most memory besides the operands, of {PEER_NAMES[peer]}",
            max(parts, default=None),
            0.25,
            "×",
            True,
        )


def _of_border(rows: list[Row]) -> Iterator[tuple[Any, ...]]:
    """Yields the targets of conversions: a fraction of the time of from_dlpack, also per leaf."""
    by_name = {row["what"]: row for row in rows}
    for name, part in (("to_torch", 1), ("to_jax", 0.5)):
        one = by_name.get(name)
        tree = next((row for row in rows if row["what"].startswith(f"{name}, tree of ")), None)
        if one is None or tree is None:
            continue
        leaves = int(tree["what"].rpartition(" ")[2])
        peer, leaf = _median(one, "from_dlpack"), _median(tree, "bridge") / leaves
        if name == "to_torch":
            yield "to_torch of an array", _median(one, "bridge") * 1e6, 5, "µs", True
        yield (
            f"{name}, of the framework's from_dlpack",
            _median(one, "bridge") / peer,
            part,
            "×",
            True,
        )
        yield f"{name}, a leaf of a tree of {leaves}, of the same", leaf / peer, part, "×", True
    for row in rows:
        for peer in row["timings"]:
            ratio = _median(row, "bridge") / _median(row, peer)
            if row["what"] == "from_jax, no gradient" and peer != "bridge":
                yield f"{row['what']}, of {peer}", ratio, 1.5, "×", True
            elif row["what"] == "from_jax, forward+backward" and peer == "torch_jax_interop":
                yield f"{row['what']} over {peer}", 1 / ratio, 2
            elif row["what"] == "from_torch in jit" and peer == "pure_callback":
                what = f"{row['what']}, {row['shape'][0]} elements, of {peer}"
                yield what, ratio, 1.3, "×", True


_TARGETS: dict[str, Callable[[list[Row]], Iterator[tuple[Any, ...]]]] = {
    "bias_gelu": _of_bias_gelu,
    "softmax": _of_softmax,
    "bias_dropout_add": _of_bias_dropout_add,
    "catalogue": _of_programs,
    "linear_cross_entropy": _of_linear_cross_entropy,
    "declared": _of_programs,
    "border": _of_border,
}


def _chosen(
    rows: Iterable[Row], *, shape: tuple[int, ...] | None = None, **values: str
) -> list[Row]:
    """Returns the rows with these values."""
    return [
        row
        for row in rows
        if all(row[name] == value for name, value in values.items())
        and (shape is None or tuple(row["shape"]) == shape)
    ]


def _medians(rows: Iterable[Row], framework: str) -> list[float]:
    """Returns bridge's times in the rows of a framework."""
    return [_median(row, "bridge") for row in rows if row["framework"] == framework]


def _median(row: Row, name: str) -> float:
    return row["timings"][name]["median"]
