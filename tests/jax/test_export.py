"""Serialised programs, symbolic sizes, and lowering for CUDA on a machine without CUDA."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from bridge.jax import bias_gelu, linear_cross_entropy
from bridge.ops.column_sums import column_sums_workspace_bytes
from tests.jax.compositions import assert_close, normal, plain

CHECKS = [export.DisabledSafetyCheck.custom_call("bridge_program")]


def gradients(x: Any, bias: Any) -> Any:
    return jax.grad(lambda x, b: (bias_gelu(x, b) ** 2).sum(), (0, 1))(x, bias)


def custom_calls(exported: Any) -> list[str]:
    lines = exported.mlir_module().splitlines()
    return [line for line in lines if "@bridge_program" in line]


def test_round_trip(rng: np.random.Generator) -> None:
    x, bias = normal(rng, 4, 5, dtype=jnp.float32), normal(rng, 5, dtype=jnp.float32)
    exported = export.export(jax.jit(bias_gelu), disabled_checks=CHECKS)(x, bias)
    loaded = export.deserialize(exported.serialize(vjp_order=1))
    np.testing.assert_array_equal(loaded.call(x, bias), bias_gelu(x, bias))
    ours = jax.grad(lambda x, b: (loaded.call(x, b) ** 2).sum(), (0, 1))(x, bias)
    expected = jax.grad(lambda x, b: (plain(x, b) ** 2).sum(), (0, 1))(x, bias)
    assert_close(ours, expected, 1e-5)


def test_export_without_the_check_disabled_says_which_call() -> None:
    with pytest.raises(ValueError, match="bridge_program"):
        export.export(jax.jit(bias_gelu))(jnp.ones(3))


def test_symbolic_sizes(rng: np.random.Generator) -> None:
    rows, cols = export.symbolic_shape("rows, cols")
    arguments = [
        jax.ShapeDtypeStruct((rows, cols), jnp.float32),
        jax.ShapeDtypeStruct((cols,), jnp.float32),
    ]
    exported = export.export(jax.jit(gradients), disabled_checks=CHECKS)(*arguments)
    for shape in ((4, 5), (1, 1), (300, 7)):
        x, bias = normal(rng, *shape, dtype=jnp.float32), normal(rng, shape[1], dtype=jnp.float32)
        for a, b in zip(exported.call(x, bias), gradients(x, bias), strict=True):
            np.testing.assert_array_equal(a, b)
    export.export(jax.jit(gradients), platforms=["cuda"], disabled_checks=CHECKS)(*arguments)


def test_symbolic_sizes_of_a_linear_layer(rng: np.random.Generator) -> None:
    (b,) = export.symbolic_shape("b")

    def exported(rows: Any, columns: Any, features: Any, chunk: int | None = None) -> Any:
        arguments = [
            jax.ShapeDtypeStruct((rows, features), jnp.float32),
            jax.ShapeDtypeStruct((columns, features), jnp.float32),
            jax.ShapeDtypeStruct((rows,), jnp.int32),
        ]
        function = jax.jit(partial(linear_cross_entropy, chunk=chunk))
        return export.export(function, disabled_checks=CHECKS)(*arguments)

    for chunk in (None, 4):
        with pytest.raises(
            ValueError, match="linear_cross_entropy: hidden has a symbolic number of rows, b, exp"
        ):
            exported(b, 8, 36, chunk)
    for columns, features in ((b, 36), (8, b)):
        with pytest.raises(ValueError, match=r"linear_cross_entropy: weight has .* give chunk="):
            exported(8, columns, features)
        sizes = [7 if size is b else size for size in (columns, features)]
        arguments = normal(rng, 8, sizes[1]), normal(rng, *sizes), jnp.arange(8) % 5
        np.testing.assert_allclose(
            exported(8, columns, features, 4).call(*arguments),
            linear_cross_entropy(*arguments, chunk=4),
            rtol=1e-6,
        )


def lowered_for(platform: str, rows: int) -> list[str]:
    x = jax.ShapeDtypeStruct((rows, 5), jnp.bfloat16)
    bias = jax.ShapeDtypeStruct((5,), jnp.bfloat16)
    return custom_calls(
        export.export(jax.jit(gradients), platforms=[platform], disabled_checks=CHECKS)(x, bias)
    )


def test_cuda_lowering_has_the_workspace_as_its_last_result() -> None:
    forward, backward = lowered_for("cuda", 1000)
    assert re.search(r"-> \(tensor<1000x5xbf16>, tensor<16xui8>\)", forward)
    size = re.search(r"-> \(tensor<1000x5xbf16>, tensor<5xbf16>, tensor<(\d+)xui8>\)", backward)
    assert size is not None
    assert int(size[1]) >= 8 * 5 * 4  # eight chunks of rows, five columns, float32


def test_cuda_needs_workspace_for_what_is_added_up_alone_in_one_chunk_of_rows() -> None:
    """This is for float32, where no compiled kernel adds it up on the way."""
    assert f"tensor<5xbf16>, tensor<{128 * 5 * 4}xui8>)" in lowered_for("cuda", 128)[1]


def test_cpu_lowering_has_no_workspace() -> None:
    assert not any("ui8" in line for line in lowered_for("cpu", 1000))


def test_both_platforms_at_once(rng: np.random.Generator) -> None:
    x, bias = normal(rng, 200, 5, dtype=jnp.float32), normal(rng, 5, dtype=jnp.float32)
    exported = export.export(jax.jit(gradients), platforms=["cpu", "cuda"], disabled_checks=CHECKS)(
        x, bias
    )
    assert any("ui8" in line for line in custom_calls(exported))
    for a, b in zip(exported.call(x, bias), gradients(x, bias), strict=True):
        np.testing.assert_array_equal(a, b)


def levels(batch: int, nodes: int, cols: int, real_bytes: int) -> int:
    """Returns the CUDA workspace for `nodes` nodes and the levels above, without the root."""
    total = 0
    while nodes > 1:
        total += -(-batch * nodes * cols * real_bytes // 16) * 16
        nodes = -(-nodes // 64)
    return total


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_workspace_is_never_too_small(dtype: str, rng: np.random.Generator) -> None:
    """Compares with cpp/interpreter/interpreter.cu, also for sizes that are symbolic or NumPy's."""
    size, is_float64 = (8, True) if dtype == "float64" else (4, False)
    edges = [128 * 64**level * n + k for level in range(4) for n in (1, 2) for k in (-1, 0, 1)]
    for rows in [0, 1, *edges, *(int(r) for r in 2 ** rng.uniform(0, 45, 200))]:
        for batch, cols in ((1, 1), (3, 5), (2, 4096), (0, 7), (7, 0)):
            leaves = batch * -(-rows // 16)
            is_by_lanes = leaves >= 66 and batch * rows * cols >= 1 << 24
            summed = 2 * (leaves if is_by_lanes else batch * rows) * cols * size
            above = levels(
                batch, -(-rows // 16 // 64) if is_by_lanes else -(-rows // 128), cols, size
            )
            for shape in ((batch, rows, cols), (batch, np.int64(rows), cols)):
                given = column_sums_workspace_bytes(2, shape, 1, is_float64)
                assert given >= min(1, rows) * (summed + above)
                assert given >= 2 * levels(batch, -(-rows // 128), cols, size)
    # A leaf of many rows takes as much as a leaf of few rows.
    many, few = ((rows, 4096) for rows in (1 << 17, 1 << 11))
    of_many, of_few = (column_sums_workspace_bytes(1, s, 0, is_float64) for s in (many, few))
    assert of_many < 1.05 * 4 * of_few
