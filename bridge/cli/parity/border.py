"""Round trips between the frameworks: every dtype and layout must return with the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

import bridge
from bridge._private.torch import neg_view
from bridge.exchange.dtypes import TO_JAX, TO_TORCH
from bridge.exchange.from_tensor import is_aligned, is_compact

DIRECTIONS = ("torch → JAX → torch", "JAX → torch → JAX")

# Views of a dense tensor [6, 5, 8]: views that fill one block are shared, the others are copied.
LAYOUTS = {
    "contiguous": lambda t: t,
    "permuted": lambda t: t.permute(2, 0, 1),
    "transposed": lambda t: t.mT,
    "leading part": lambda t: t[:2],
    "inner columns": lambda t: t[..., 1:6],
    "every other row": lambda t: t[::2],
    "expanded": lambda t: t[:1, :, :1].expand(6, 5, 8),
    "misaligned": lambda t: t.reshape(-1)[1:],
    "no elements": lambda t: t[:0],
    "0-d": lambda t: t[0, 0, 0],
}
LAZY = {"conjugate": lambda t: t.conj(), "negative": neg_view}
# XLA checks an address only when a program reads it, so these arrays are also read by a program.
COMPUTED = ("misaligned",)
QUICK = ("bool", "int64", "bfloat16", "float32", "complex64", "float8_e4m3fn")


@dataclass(frozen=True)
class Crossing:
    """One round trip.

    Attributes:
      dtype, layout, copy: the properties of the array, and the argument `copy`.
      elements: the number of elements.
      differing: the number of elements that returned with other bits, or, in a layout of COMPUTED,
        were read with other bits by a JAX program.
      promised: True if memory must be shared all along.
      shared: True if it was.
      refused: True if BufferError was raised, as copy=False demands if memory cannot be shared.
    """

    direction: str
    dtype: str
    layout: str
    copy: bool | None
    elements: int
    differing: int
    promised: bool
    shared: bool
    refused: bool

    @property
    def passed(self) -> bool:
        if self.copy is False and not self.promised:
            return self.refused
        return not self.refused and self.differing == 0 and self.shared == self.promised

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"passed": self.passed}


def dtypes(quick: bool = False) -> list[torch.dtype]:
    """Returns the dtypes of the round trips."""
    return [dtype for dtype, array in TO_JAX.items() if not quick or array.name in QUICK]


def in_json(dtype: torch.dtype, device: str) -> list[dict[str, Any]]:
    """Returns the round trips of a dtype in every layout, in both directions, for each `copy`."""
    with jax.enable_x64(True):
        return [crossing.to_json() for crossing in _of_dtype(dtype, device)]


def _of_dtype(dtype: torch.dtype, device: str) -> Iterator[Crossing]:
    dense = _random_bits(dtype, device)
    views = {name: view(dense) for name, view in LAYOUTS.items()}
    if dtype.is_complex:
        views |= {name: view(dense) for name, view in LAZY.items()}
    elif dtype.is_floating_point and dtype.itemsize > 1:
        views["negative"] = LAZY["negative"](dense)
    for layout, tensor in views.items():
        shared = is_compact(tensor) and is_aligned(tensor) and layout not in LAZY
        for copy in (None, False, True):
            yield _there_and_back(tensor, layout, copy, shared and copy is not True)
    for copy in (None, False, True):
        yield _back_and_there(bridge.to_jax(dense), copy)


def _there_and_back(
    tensor: torch.Tensor, layout: str, copy: bool | None, promised: bool
) -> Crossing:
    refused, computed = False, 0
    try:
        array = bridge.to_jax(tensor, copy=copy)
        home = bridge.to_torch(array, copy=copy)
        if layout in COMPUTED:
            computed = max(_differing(tensor, read) for read in _read_twice(array, tensor.dtype))
    except BufferError:
        refused, home = True, tensor
    return Crossing(
        DIRECTIONS[0],
        TO_JAX[tensor.dtype].name,
        layout,
        copy,
        tensor.numel(),
        max(_differing(tensor, home), computed),
        # A tensor of no elements has no memory to share.
        promised,
        home.data_ptr() == tensor.data_ptr() if tensor.numel() else promised,
        refused,
    )


@jax.jit
def _twice(array: Any) -> Any:
    if jnp.issubdtype(array.dtype, jnp.floating):
        # XLA may move small floats through wider ones, which makes signaling NaNs quiet.
        array = jax.lax.bitcast_convert_type(array, f"uint{8 * array.dtype.itemsize}")
    return jnp.stack([array, array])


def _read_twice(array: jax.Array, dtype: torch.dtype) -> torch.Tensor:
    """Returns the array as a JAX program reads it, twice; empty if XLA refuses to run it."""
    try:
        return bridge.to_torch(_twice(array).block_until_ready()).view(dtype)
    except jax.errors.JaxRuntimeError:
        return torch.empty(2, 0, dtype=dtype)


def _back_and_there(array: Any, copy: bool | None) -> Crossing:
    tensor = bridge.to_torch(array, copy=copy)
    home = bridge.to_jax(tensor, copy=copy)
    differing = _differing(bridge.to_torch(array), bridge.to_torch(home))
    if home.dtype != array.dtype or tensor.dtype != TO_TORCH[array.dtype]:
        differing = max(array.size, 1)
    shared = home.unsafe_buffer_pointer() == array.unsafe_buffer_pointer()
    return Crossing(
        DIRECTIONS[1],
        array.dtype.name,
        "contiguous",
        copy,
        array.size,
        differing,
        copy is not True,
        shared,
        False,
    )


def _random_bits(dtype: torch.dtype, device: str) -> torch.Tensor:
    """Returns random bits, so that every bit pattern of the dtype is likely, also NaN payloads."""
    shape = (6, 5, 8)
    random = np.random.default_rng(list(str(dtype).encode()))
    if dtype is torch.bool:
        return torch.from_numpy(random.integers(0, 2, shape).astype(np.bool_)).clone().to(device)
    size = (*shape[:-1], shape[-1] * dtype.itemsize)
    raw = torch.from_numpy(random.integers(0, 256, size, dtype=np.uint8)).clone()
    return raw.view(dtype).to(device)


def _differing(a: torch.Tensor, b: torch.Tensor) -> int:
    """Counts elements whose bytes differ; all of them if shape or dtype differ."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return max(a.numel(), 1)
    bytes_of_a, bytes_of_b = (
        t.resolve_conj().resolve_neg().contiguous().reshape(-1, 1).view(torch.uint8)
        if t.numel()
        else t
        for t in (a, b)
    )
    return int((bytes_of_a != bytes_of_b).reshape(max(a.numel(), 1), -1).any(1).sum()) * (
        a.numel() > 0
    )


def aggregate(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns one record per direction and layout, with all dtypes together."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        record = found.setdefault(
            (row["direction"], row["layout"]),
            {
                "direction": row["direction"],
                "layout": row["layout"],
                "dtypes": [],
                "crossings": 0,
                "differing": 0,
                "shared": row["promised"],
                "passed": True,
            },
        )
        if row["dtype"] not in record["dtypes"]:
            record["dtypes"].append(row["dtype"])
        record["crossings"] += 1
        record["differing"] += row["differing"]
        record["shared"] |= row["promised"]
        record["passed"] &= row["passed"]
    return list(found.values())


NOTE = (
    "Round trips with copy=None, False and True. ≠: elements that returned with other bits, or "
    "were read with other bits by a JAX program in the layout misaligned. Memory: same if it is "
    "shared all the way when no copy is requested; if it is not, copy=False raises BufferError."
)


def cells(record: dict[str, Any]) -> list[str]:
    """Returns the cells of a record's row in the table."""
    return [
        record["direction"],
        record["layout"],
        str(len(record["dtypes"])),
        str(record["crossings"]),
        str(record["differing"]),
        "same" if record["shared"] else "copy",
        "pass" if record["passed"] else "FAIL",
    ]


HEADER = ("", "layout", "dtypes", "crossings", "≠", "memory", "")
TEXTS = (0, 1, 5, 6)  # columns of HEADER with text
