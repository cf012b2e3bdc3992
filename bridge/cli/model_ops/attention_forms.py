"""Forms of `attention`, with the same formula in each framework's own operations."""

from __future__ import annotations

import math
from typing import Any

from bridge.cli.entries import Comparison, Entry, Operands
from bridge.cli.model_ops.attention_bounds import Form, bounds

Shape = tuple[int, ...]  # [batch, heads, key heads, queries, keys, d]


_PLAIN = Form()


def _own_torch(form: Form, p: Operands) -> Any:
    import torch

    q, group = p["x"], p["x"].shape[1] // p["k"].shape[1]
    k, v = (p[name].repeat_interleave(group, 1) for name in ("k", "v"))
    s = form.scale_of(q.shape[-1]) * (q @ k.mT)
    if form.softcap:
        s = form.softcap * torch.tanh(s / form.softcap)
    seen = torch.from_numpy(form.visible(s.shape[-2], s.shape[-1], None))
    if "mask" in p:
        seen = seen & ~p["mask"]
    s = s.masked_fill(~seen, -math.inf)
    if "sink" in p:
        sink = p["sink"].to(s.dtype)[:, None, None].expand(*s.shape[:-1], 1)
        return torch.cat((s, sink), -1).softmax(-1)[..., :-1] @ v
    # A query without keys has a row of zeros.
    some = seen.any(-1, keepdim=True)
    return torch.where(some, torch.where(some, s, 0.0).softmax(-1), 0.0) @ v


def _own_jax(form: Form, p: Operands) -> Any:
    import jax
    import jax.numpy as jnp

    q, group = p["x"], p["x"].shape[1] // p["k"].shape[1]
    k, v = (jnp.repeat(p[name], group, 1) for name in ("k", "v"))
    s = form.scale_of(q.shape[-1]) * (q @ k.mT)
    if form.softcap:
        s = form.softcap * jnp.tanh(s / form.softcap)
    queries, keys = s.shape[-2:]
    seen = jnp.asarray(form.visible(queries, keys, None))
    if "mask" in p:
        seen = seen & ~p["mask"]
    s = jnp.where(seen, s, -math.inf)
    if "sink" in p:
        sink = jnp.broadcast_to(p["sink"].astype(s.dtype)[:, None, None], (*s.shape[:-1], 1))
        return jax.nn.softmax(jnp.concatenate((s, sink), -1), axis=-1)[..., :-1] @ v
    some = seen.any(-1, keepdims=True)
    return jnp.where(some, jax.nn.softmax(jnp.where(some, s, 0.0), axis=-1), 0.0) @ v


def _form(
    name: str,
    shape: Shape,
    form: Form = _PLAIN,
    *,
    is_compared: bool = False,
    has_mask: bool = False,
    has_sink: bool = False,
    cancels: bool = False,
) -> Entry:
    suffix = " mirrored" if cancels else ""
    roles = {"x": "queries", "k": f"keys{suffix}", "v": f"values{suffix}"}
    roles |= {"sink": "sinks"} if has_sink else {}
    roles |= {"mask": "mask of pairs"} if has_mask else {}

    def call(ops: Any, p: Operands) -> Any:
        given = {name: p.get(name) for name in ("mask", "sink")}
        return ops.attention(p["x"], p["k"], p["v"], **given, **form.options())

    return Entry(
        name,
        roles,
        ("attended",),
        call,
        lambda p: _own_torch(form, p),
        lambda p: _own_jax(form, p),
        compared=Comparison(
            "attention",
            bounds=bounds(form),
            second_order=True,
            are_rows_independent=False,
            own=is_compared,
            usual=False,
            own_shapes=(shape,) if is_compared else (),
            shapes=() if is_compared else (shape,),
        ),
    )


ATTENTION = (
    _form("attention", (2, 3, 3, 17, 19, 8), is_compared=True),
    _form("attention causal", (1, 2, 2, 33, 300, 9), Form(causal=True)),
    _form("attention of groups in a window", (2, 6, 2, 21, 21, 5), Form(causal=True, window=7)),
    _form("attention mask", (2, 2, 1, 13, 29, 16), has_mask=True),
    _form("attention sink", (2, 3, 3, 11, 23, 8), Form(scale=0.7), has_sink=True),
    _form("attention softcap", (1, 4, 2, 19, 17, 12), Form(causal=True, softcap=1.5)),
    _form(
        "attention with all options",
        (1, 4, 2, 15, 27, 7),
        Form(causal=True, window=9, scale=-0.4, softcap=2.0),
        has_mask=True,
        has_sink=True,
    ),
    _form("attention of values that cancel", (1, 2, 1, 9, 600, 6), cancels=True),
)
