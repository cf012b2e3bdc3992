"""glu with blocks=: packed arrays side by side, in both frameworks and every option."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import bridge.jax as bj
import bridge.torch as bt

ROWS, D = (5, 3), 12


def in_blocks(halves: np.ndarray, blocks: int) -> np.ndarray:
    """Returns the columns of `[gate | up]` as `blocks` packed blocks."""
    gate, up = (np.split(half, blocks, -1) for half in np.split(halves, 2, -1))
    return np.concatenate([part for pair in zip(gate, up, strict=True) for part in pair], -1)


@pytest.mark.parametrize("extras", [(), ("bias",), ("weight",), ("bias", "weight")], ids=str)
@pytest.mark.parametrize("blocks", [2, 3, 4, 12])
@pytest.mark.parametrize("name", ["swiglu", "geglu", "reglu"])
def test_bits_of_the_same_columns_in_halves(
    name: str, blocks: int, extras: tuple[str, ...], rng: np.random.Generator
) -> None:
    halves = rng.standard_normal((*ROWS, 2 * D), np.float32)
    given = {
        "bias": rng.standard_normal(2 * D, np.float32),
        "weight": rng.standard_normal(ROWS, np.float32),
    }
    given = {extra: given[extra] for extra in extras}
    moved = dict(given)
    if "bias" in given:
        moved["bias"] = in_blocks(given["bias"], blocks)

    def run(x: np.ndarray, others: dict[str, Any], **options: Any) -> list[np.ndarray]:
        tensors = {key: torch.from_numpy(value) for key, value in others.items()}
        learned = [torch.from_numpy(x), *tensors.values()]
        for tensor in learned:
            tensor.requires_grad_()
        y = getattr(bt, name)(learned[0], limit=0.8, **tensors, **options)
        found = [y, *torch.autograd.grad(y.sin().sum(), learned)]
        return [tensor.detach().numpy() for tensor in found]

    expected, found = run(halves, given), run(in_blocks(halves, blocks), moved, blocks=blocks)
    for i, extra in enumerate((None, "packed", *extras)):
        as_found = in_blocks(expected[i], blocks) if extra in ("packed", "bias") else expected[i]
        np.testing.assert_array_equal(found[i], as_found)

    arrays = {key: jnp.asarray(value) for key, value in moved.items()}
    function = jax.jit(lambda x, o: getattr(bj, name)(x, limit=0.8, blocks=blocks, **o))
    np.testing.assert_array_equal(function(in_blocks(halves, blocks), arrays), found[0])

    with torch.no_grad():
        tensors = {key: torch.from_numpy(value) for key, value in moved.items()}
        x, out = torch.from_numpy(in_blocks(halves, blocks)), torch.empty(*ROWS, D)
        assert getattr(bt, name)(x, limit=0.8, blocks=blocks, out=out, **tensors) is out
    np.testing.assert_array_equal(out, found[0])
    module = bt.GLU("gelu", blocks=blocks)
    assert torch.equal(module(x), bt.geglu(x, blocks=blocks))


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"blocks": 3}, ValueError, r"gate has shape \[2, 8\], expected a multiple of 6"),
        ({"blocks": 0}, ValueError, "blocks is 0, expected an integer from 1 on"),
        ({"blocks": 2.0}, TypeError, "blocks has type float, expected an integer"),
        ({"blocks": 2, "interleaved": True}, ValueError, "blocks is 2 and interleaved is True"),
        ({"blocks": 2, "up": True}, ValueError, "blocks is 2 and up is given, expected one"),
    ],
)
@pytest.mark.parametrize(("ops", "ones"), [(bt, torch.ones), (bj, jnp.ones)])
def test_refusals(ops: Any, ones: Any, options: dict[str, Any], kind: Any, words: str) -> None:
    if "up" in options:
        options = {**options, "up": ones((2, 8))}
    with pytest.raises(kind, match=f"^glu: {words}"):
        ops.glu(ones((2, 8)), **options)
