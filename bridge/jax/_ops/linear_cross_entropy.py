"""Cross-entropy of a linear layer's logits for JAX; only a few rows of logits exist at a time."""

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

from bridge.catalogue.cross_entropy import Options
from bridge.catalogue.linear_cross_entropy import check_dtypes, check_shapes, chunk_rows
from bridge.jax._adapter.arguments import (
    as_array_like,
    as_array_likes,
    as_arrays,
    compiled_for,
    refuse_traced,
)
from bridge.jax._adapter.avals import vary_alike
from bridge.jax._ops.cross_entropy import cross_entropies
from bridge.jax._ops.labels import as_signed, check_ignored, check_labels
from bridge.lang.dtypes import INTEGERS
from bridge.ops.scalars import whole_number

ArrayLike = jax.typing.ArrayLike
_NAME = "linear_cross_entropy"


def linear_cross_entropy(
    hidden: ArrayLike,
    weight: ArrayLike,
    labels: ArrayLike,
    *,
    bias: ArrayLike | None = None,
    chunk: int | None = None,
    reduction: str = "mean",
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
) -> jax.Array:
    r"""`cross_entropy(hidden @ weight.T + bias, labels)`, without the logits of all rows in memory.

    The logits of only `chunk` rows exist at a time. For a mean or a sum the forward pass also
    computes the gradients of hidden, weight and bias from them. For `"none"`, and for derivatives
    of gradients, the logits are computed again. The matrix products are XLA's own, so the bits of
    the result differ from `bridge.torch`. The rows of a chunk are equally spaced, so that each
    device works on its own rows if the rows are split over devices.

    Args:
      hidden: `[..., features]`.
      weight: `[V, features]`, of hidden's dtype.
      labels: `[...]` of any integer dtype.
      bias: `[V]`, of hidden's dtype, or None.
      chunk: the number of rows whose logits exist at a time, known at compile time. None: as many
        as need about the memory of `hidden`, at least 256, and at least 512 if there are 4096 rows
        or more.
      reduction, ignore_index, label_smoothing, z_loss, softcap: as for `cross_entropy`.

    Returns:
      A scalar, or `[...]`: in float32, for float64 in float64.

    Raises:
      TypeError, ValueError: as for `cross_entropy`; dtypes that differ, shapes that do not fit, a
        chunk that is no positive integer. Under `jax.export` ValueError for a symbolic number of
        rows, and without a chunk for any other symbolic size.

    Example:
      >>> linear_cross_entropy(jnp.zeros((2, 3)), jnp.ones((4, 3)), jnp.array([0, 1]))
      Array(1.3862944, dtype=float32)

    Source: Wijmans et al., "Cut Your Losses in Large-Vocabulary Language Models", arXiv:2411.09009;
    gradients in the forward pass: Hsu et al., "Liger Kernel", arXiv:2410.10989.
    """
    refuse_traced(_NAME, "chunk", chunk)
    options = cross_entropies.options(
        _NAME, reduction, ignore_index, label_smoothing, z_loss, softcap
    )
    arrays: Any = as_arrays(
        *as_array_likes(_NAME, 2, hidden=hidden, weight=weight, bias=bias),
        as_array_like(_NAME, "labels", labels, INTEGERS, f"one of {', '.join(INTEGERS)}"),
    )
    named: Any = dict(zip(("hidden", "weight", "bias", "labels"), arrays, strict=True))
    check_shapes(_NAME, {name: None if a is None else a.shape for name, a in named.items()})
    dtypes = {name: a.dtype.name for name, a in named.items() if a is not None}
    check_dtypes(_NAME, dtypes, dtypes.pop("labels"))
    shape, (columns, features) = named["hidden"].shape, named["weight"].shape
    check_ignored(_NAME, labels, options.ignore_index)
    check_labels(_NAME, labels, hidden, columns, options.ignore_index)
    if chunk is not None:
        chunk = whole_number(_NAME, "chunk", chunk, 1)
    rows = math.prod(shape[:-1])
    _refuse_symbolic(rows, chunk, named["weight"].shape)
    per = chunk_rows(chunk, rows, features, columns)
    run = _compiled(options, per)
    spec = jax.typeof(named["labels"]).sharding.spec if reduction == "none" else PartitionSpec()
    mesh = _explicit_mesh(arrays)
    # XLA splits the chunks: with explicit types, every operation in them would need a sharding.
    return run(*arrays) if mesh is None else _auto(run, mesh, spec)(*arrays)


def _refuse_symbolic(rows: Any, chunk: int | None, weight: Any) -> None:
    """Raises ValueError for symbolic sizes that the division into chunks depends on."""
    if not isinstance(rows, int):
        raise ValueError(
            f"{_NAME}: hidden has a symbolic number of rows, {rows}, expected one that is known "
            f"when the function is exported"
        )
    if chunk is None and not all(isinstance(size, int) for size in weight):
        raise ValueError(
            f"{_NAME}: weight has the symbolic shape {list(weight)}, which gives no chunk: "
            f"give chunk="
        )


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
def _compiled(given: Options, per: int) -> Any:
    def linear_cross_entropy(hidden: Any, weight: Any, bias: Any, labels: Any) -> Any:
        shape, rows = labels.shape, labels.size
        chunks = max(-(-rows // per), 1)
        hidden = _in_chunks(hidden.reshape(rows, hidden.shape[-1]), chunks, 0)
        # In the widest dtype, because the ignored label also marks the rows of padding.
        labels, ignored = as_signed(labels.reshape(rows), given.ignore_index)
        options = replace(given, ignore_index=ignored)
        labels = _in_chunks(labels, chunks, ignored)
        if options.reduction != "none":
            return _reduced(options, hidden, weight, bias, labels)
        found = _losses(options, hidden, weight, bias, labels)[0]
        return found.swapaxes(0, 1).reshape(-1)[:rows].reshape(shape)

    return linear_cross_entropy


def _in_chunks(rows: Any, chunks: int, filling: int) -> Any:
    """Returns `[chunks, rows per chunk, ...]`; row r is in chunk r mod chunks."""
    missing = -rows.shape[0] % chunks
    if missing:
        rows = jnp.pad(rows, [(0, missing), *[(0, 0)] * (rows.ndim - 1)], constant_values=filling)
    return rows.reshape(rows.shape[0] // chunks, chunks, *rows.shape[1:]).swapaxes(0, 1)


def _linear(hidden: Any, weight: Any, bias: Any) -> Any:
    logits = hidden @ weight.T
    return logits if bias is None else logits + bias[None]


def _losses(options: Options, hidden: Any, weight: Any, bias: Any, labels: Any) -> Any:
    """Returns the losses of each row of the chunks; derivatives compute the logits again."""

    @jax.checkpoint
    def of_chunk(hidden: Any, labels: Any) -> Any:
        return cross_entropies.of_rows((_linear(hidden, weight, bias), labels), options)

    return lax.map(lambda part: of_chunk(*part), (hidden, labels))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _reduced(options: Options, hidden: Any, weight: Any, bias: Any, labels: Any) -> Any:
    return cross_entropies.reduced(
        options.reduction, *_losses(options, hidden, weight, bias, labels)
    )


@functools.partial(_reduced.defjvp, symbolic_zeros=True)
def _reduced_jvp(options: Options, primals: Any, tangents: Any) -> Any:
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

    @jax.checkpoint
    def of_chunk(added: Any, part: Any) -> Any:
        hidden, labels = part
        found, pull = jax.vjp(
            lambda logits: cross_entropies.of_rows((logits, labels), options),
            _linear(hidden, weight, bias),
        )
        shares = [jnp.full_like(found[0], share), *map(jnp.zeros_like, found[1:])]
        (d,) = pull(type(found)(vary_alike([*shares, *found])[: len(found)]))
        dw, db = added
        if dw is not None:
            dw = dw + lax.dot_general(
                d, hidden, (((0,), (0,)), ((), ())), preferred_element_type=sums
            )
        if db is not None:
            db = db + d.sum(0, dtype=sums)
        return (dw, db), (found, d @ weight if are_wanted[0] else None)

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
    if options.reduction == "mean":  # divide last: 16 bits may not hold the share of a row
        change = change / jnp.maximum(jnp.sum(found[1]), 1)
    return cross_entropies.reduced(options.reduction, *found), change
