"""The comparison of all shards' arguments to a collective, as a part of the program.

Each process compiles a program of its own. If one process has another shape, for example because
its last batch is smaller, it alone traces again, and the others do not run any Python code. So only
the programs can compare their arguments, while they run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from bridge._private.jax import Primitive, aval_of_result, register_lowering, varying_axes_of
from bridge.collectives import Signature
from bridge.jax._adapter.host_call import host_call, platform_of

# Returns the error for the signatures of all shards, or None.
Judge = Callable[[list[Signature]], Exception | None]


@dataclass(frozen=True)
class Agreement:
    """The signature of this shard, and the function that judges the signatures of all shards."""

    mine: Signature
    judge: Judge


def where_agreed(
    function: Callable[[Any], Any], x: Any, names: tuple[Any, ...], agreement: Agreement
) -> Any:
    """Returns function(x) if all shards along the mesh axes agree; otherwise all of them fail.

    This takes one exchange of 128 bytes per shard, and one call of Python.
    """
    mine = np.array(agreement.mine.numbers(), np.int64).view(np.uint8)
    rows = lax.all_gather(jnp.asarray(mine), names)
    verdict = _verdict.bind(rows, judge=agreement.judge)
    # A branch runs only after the verdict. (A select would copy x.)
    result = aval_of_result(function, jax.typeof(x))
    return lax.cond(verdict, function, partial(_zeros, result), x)


def _zeros(like: Any, _: Any) -> Any:
    zeros = jnp.zeros(like.shape, like.dtype)
    axes = tuple(varying_axes_of(like))
    return lax.pcast(zeros, axes, to="varying") if axes else zeros


_verdict = Primitive("bridge_agree")


@_verdict.def_abstract_eval
def _abstract(rows: Any, *, judge: Judge) -> Any:
    return aval_of_result(jnp.all, rows)


def _lower(context: Any, rows: Any, *, judge: Judge) -> Any:
    def compare(rows: Any) -> tuple[np.ndarray]:
        numbers = np.ascontiguousarray(rows).view(np.int64).tolist()
        fault = judge([Signature.from_numbers(row) for row in numbers])
        if fault is not None:
            raise fault
        return (np.array(True),)

    return host_call(context, platform_of(context, "all_gather with check=True"), compare, rows)


register_lowering(_verdict, _lower, cacheable=False)
