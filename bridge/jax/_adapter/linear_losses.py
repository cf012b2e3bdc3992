"""Losses of a linear layer's results, computed for a few rows at a time.

For a mean or a sum, the forward pass computes the gradients too, up to a factor.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero
from jax.sharding import NamedSharding, PartitionSpec

from bridge.jax._adapter.arguments import compiled_for
from bridge.jax._adapter.avals import vary_alike
from bridge.ops.linear_losses import Losses, chunk_rows, step


class LinearLosses:
    """A loss of rows of hidden @ weight.T + bias.

    Args:
      name: the public function's name.
      losses: the loss of logits.
      as_signed: as_signed(labels, ignore_index) returns labels of the widest signed dtype, and the
        label that is ignored among them.
    """

    def __init__(self, name: str, losses: Losses, as_signed: Any) -> None:
        self.name, self.losses, self.as_signed = name, losses, as_signed

    def run(self, operands: tuple[Any, ...], chunk: int | None, options: Any) -> Any:
        """Returns the loss of hidden, weight, labels and bias, which have been checked."""
        hidden, weight, labels, bias = operands
        (columns, features), rows = weight.shape, math.prod(hidden.shape[:-1])
        refuse_symbolic(self.name, rows, chunk, weight.shape)
        run = _compiled(self, options, chunk_rows(chunk, rows, features, columns))
        is_none = options.reduction == "none"
        return split_by_xla(run, (hidden, weight, bias, labels), labels if is_none else None)


def refuse_symbolic(function: str, rows: Any, chunk: int | None, weight: Any) -> None:
    """Raises ValueError for symbolic sizes that the division into chunks depends on."""
    if not isinstance(rows, int):
        raise ValueError(
            f"{function}: hidden has a symbolic number of rows, {rows}, expected one that is "
            f"known when the function is exported"
        )
    if chunk is None and not all(isinstance(size, int) for size in weight):
        raise ValueError(
            f"{function}: weight has the symbolic shape {list(weight)}, which gives no chunk: "
            f"give chunk="
        )


def split_by_xla(run: Any, arrays: tuple[Any, ...], like: Any, last: int = 0) -> Any:
    """Returns run(*arrays), split over devices by XLA even if the arrays have explicit types.

    Otherwise every operation on a chunk would need a sharding.

    Args:
      like: the results are split like this array, or not at all for None.
      last: the number of its last dimensions that the results do not have.
    """
    mesh = _explicit_mesh(arrays)
    if mesh is None:
        return run(*arrays)
    spec = PartitionSpec()
    if like is not None:
        spec = PartitionSpec(*jax.typeof(like).sharding.spec[: like.ndim - last])
    return _auto(run, mesh, spec)(*arrays)


def _explicit_mesh(arrays: Any) -> Any:
    """Returns the mesh of the first array with explicit axes, or None."""
    for array in arrays:
        mesh = None if array is None else jax.typeof(array).sharding.mesh
        if mesh is not None and not mesh.empty and mesh.explicit_axes:
            return mesh
    return None


def _auto(run: Any, mesh: Any, spec: Any) -> Any:
    axes = mesh.explicit_axes
    return jax.sharding.auto_axes(run, axes=axes, out_sharding=NamedSharding(mesh, spec))


@compiled_for
def _compiled(loss: LinearLosses, given: Any, per: int) -> Any:
    def compute(hidden: Any, weight: Any, bias: Any, labels: Any) -> Any:
        shape, rows = labels.shape, labels.size
        chunks = max(-(-rows // per), 1)
        hidden = _in_chunks(hidden.reshape(rows, hidden.shape[-1]), chunks, 0)
        # In the widest dtype, because the ignored label also marks the rows of padding.
        labels, ignored = loss.as_signed(labels.reshape(rows), given.ignore_index)
        options = replace(given, ignore_index=ignored)
        labels = _in_chunks(labels, chunks, ignored)
        if options.reduction != "none":
            return _reduced(loss, options, hidden, weight, bias, labels)
        found = _losses(loss, options, hidden, weight, bias, labels)[0]
        return found.swapaxes(0, 1).reshape(-1)[:rows].reshape(shape)

    compute.__name__ = loss.name
    return compute


def _in_chunks(rows: Any, chunks: int, filling: int) -> Any:
    """Returns `[chunks, rows per chunk, ...]`; row r is in chunk r mod chunks."""
    missing = -rows.shape[0] % chunks
    if missing:
        rows = jnp.pad(rows, [(0, missing), *[(0, 0)] * (rows.ndim - 1)], constant_values=filling)
    return rows.reshape(rows.shape[0] // chunks, chunks, *rows.shape[1:]).swapaxes(0, 1)


class _Products:
    """Matrix products of XLA."""

    def linear(self, hidden: Any, weight: Any, bias: Any) -> Any:
        logits = hidden @ weight.T
        return logits if bias is None else logits + bias[None]

    def times(self, d: Any, weight: Any) -> Any:
        return d @ weight

    def added(self, total: Any, d: Any, hidden: Any) -> Any:
        over_rows = (((0,), (0,)), ((), ()))
        return total + lax.dot_general(d, hidden, over_rows, preferred_element_type=total.dtype)

    def added_rows(self, total: Any, d: Any) -> Any:
        return total + d.sum(0, dtype=total.dtype)


_products = _Products()


def _losses(
    loss: LinearLosses, options: Any, hidden: Any, weight: Any, bias: Any, labels: Any
) -> Any:
    """Returns the losses of each row of the chunks; derivatives compute the logits again."""

    @jax.checkpoint
    def of_chunk(hidden: Any, labels: Any) -> Any:
        logits = _products.linear(hidden, weight, bias)
        return loss.losses.of_rows((logits, labels), options)

    return lax.map(lambda part: of_chunk(*part), (hidden, labels))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _reduced(
    loss: LinearLosses, options: Any, hidden: Any, weight: Any, bias: Any, labels: Any
) -> Any:
    found = _losses(loss, options, hidden, weight, bias, labels)
    return loss.losses.reduced(options.reduction, *found)


@functools.partial(_reduced.defjvp, symbolic_zeros=True)
def _reduced_jvp(loss: LinearLosses, options: Any, primals: Any, tangents: Any) -> Any:
    """Returns the result and its tangent; the same pass computes the gradients for it."""
    hidden, weight, bias, labels = primals
    are_wanted = [not isinstance(t, SymbolicZero) and t is not None for t in tangents[:3]]
    sums = hidden.dtype if hidden.dtype == jnp.float64 else jnp.dtype(jnp.float32)
    share = jnp.ones((), sums)
    if weight.dtype == jnp.float16:
        # The gradients of hidden, at most twice the largest weight, must not overflow before they
        # are divided by the number of rows.
        largest = jnp.max(jnp.abs(weight), initial=0)
        share = jnp.where(largest > 32752, jnp.asarray(0.5, sums), share)

    def with_gradient(logits: Any, labels: Any) -> tuple[Any, Any]:
        found, pull = jax.vjp(lambda s: loss.losses.of_rows((s, labels), options), logits)
        shares = [jnp.full_like(found[0], share), *map(jnp.zeros_like, found[1:])]
        (d,) = pull(type(found)(vary_alike([*shares, *found])[: len(found)]))
        return found, d

    @jax.checkpoint
    def of_chunk(added: Any, part: Any) -> Any:
        hidden, labels = part
        operands, pull = (hidden, weight, bias), lambda logits: with_gradient(logits, labels)
        added, found, dh = step(_products, pull, added, operands, are_wanted)
        return added, (found, dh)

    starts = [
        vary_alike([jnp.zeros(like.shape, sums), *primals[:2]])[0] if is_wanted else None
        for like, is_wanted in zip((weight, bias), are_wanted[1:], strict=True)
    ]
    (dw, db), (found, dh) = lax.scan(of_chunk, tuple(starts), (hidden, labels))
    change = jnp.zeros((), sums)
    for gradient, tangent, is_wanted in zip((dh, dw, db), tangents[:3], are_wanted, strict=True):
        if is_wanted:
            change = change + jnp.sum(gradient.astype(sums) * tangent.astype(sums))
    change = change / share
    if options.is_mean:  # divide last: 16 bits may not hold the share of a row
        change = change / jnp.maximum(jnp.sum(found[1]), 1)
    return loss.losses.reduced(options.reduction, *found), change
