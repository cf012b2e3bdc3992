"""Finds by a trial the rotary embeddings in the Python modules of Hugging Face models."""

from __future__ import annotations

import inspect
import itertools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from bridge.torch._drop_ins.huggingface.layers import of_heads
from bridge.torch._drop_ins.huggingface.trial import (
    ELSE,
    FAILED,
    TOLERANCES,
    alike,
    numbers,
    unseen,
)
from bridge.torch._ops.rotary import rotary

# Tables of d columns in equal halves (most models) or in equal pairs, or of d/2 columns (GPT-OSS).
_TABLES = ("doubled", "pairs", "half")


def rotary_of(
    modules: set[str],
) -> Iterator[tuple[Any, Callable[..., Any], Callable[..., Any] | str]]:
    """Yields rotary embeddings: (module, function, our function or the reason for none)."""
    for name in sorted(modules):
        original = vars(sys.modules.get(name, types)).get("apply_rotary_pos_emb")
        if isinstance(original, types.FunctionType):
            yield sys.modules[name], original, _rotary_like(original)


def _rotary_like(original: Callable[..., Any]) -> Callable[..., Any] | str:
    parameters = inspect.signature(original).parameters
    turned = [name for name in parameters if name not in ("cos", "sin", "unsqueeze_dim")]
    if list(parameters) != [*turned, "cos", "sin", "unsqueeze_dim"] or len(turned) not in (1, 2):
        return "its arguments have other names"
    default = parameters["unsqueeze_dim"].default
    why = ""
    with unseen():
        for tables in _TABLES:
            try:
                found = _alike_on(tables, original, [*parameters], len(turned), default)
            except Exception as error:
                why = why or FAILED.format(type(error).__name__, error)
            else:
                if found is not None:
                    return found
                why = ELSE
    return why


def _alike_on(
    tables: str, original: Callable[..., Any], names: list[str], count: int, default: int
) -> Callable[..., Any] | None:
    """Returns the first of our forms that agrees with the original on such tables, or None."""
    tried = list(_tried(original, count, tables))
    for form in itertools.product((False, True), repeat=2):
        found = _rotary_by(names, count, default, tables, *form)
        if all(
            alike(dtype, *pair)
            for dtype, given, expected in tried
            for pair in zip(expected, _tuple(found(*given)), strict=True)
        ):
            return found
    return None


def _tuple(found: Any) -> tuple[Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


def _tried(
    original: Callable[..., Any], count: int, kind: str
) -> Iterator[tuple[Any, tuple[Any, ...], tuple[Tensor, ...]]]:
    """Yields arguments and results of the original on tables of a kind."""
    for columns, of_x, of_tables in itertools.product((8, 4), TOLERANCES, TOLERANCES):
        halves = [numbers(2, 5, columns // 2, dtype=of_tables, seed=i) for i in range(2)]
        dim = -1 if kind == "pairs" else -2
        copies = 1 if kind == "half" else 2
        tables = [torch.stack([half] * copies, dim).flatten(-2) for half in halves]
        for heads, shapes in ((1, ((2, 3, 5, 8), (2, 1, 5, 8))), (2, ((2, 5, 3, 8), (2, 5, 1, 8)))):
            xs = [numbers(*shape, dtype=of_x) for shape in shapes[:count]]
            try:
                found = original(*xs, *tables, heads)
            except RuntimeError:
                if columns == 8:
                    raise
                continue  # not every model takes tables for a part of the columns
            narrower = torch.bfloat16 if torch.bfloat16 in (of_x, of_tables) else torch.float32
            yield narrower, (*xs, *tables, heads), _tuple(found)


def _rotary_by(
    names: list[str],
    count: int,
    default: int,
    kind: str,
    interleaved: bool,
    keeps_dtype: bool,
) -> Callable[..., Any]:
    def table_of(table: Tensor, heads: int) -> Tensor:
        if kind == "doubled":
            return of_heads(table, heads)
        return (table if kind == "half" else table[..., ::2]).unsqueeze(heads)

    def apply_rotary_pos_emb(*given: Any, **named: Any) -> Any:
        named.update(zip(names, given, strict=False))
        heads = named.get("unsqueeze_dim", default)
        tables = [table_of(named[name], heads) for name in ("cos", "sin")]
        found = []
        for name in names[:count]:
            y = rotary(named[name], *tables, interleaved=interleaved)
            found.append(y.to(named[name].dtype) if keeps_dtype else y)
        return tuple(found) if count > 1 else found[0]

    return apply_rotary_pos_emb
