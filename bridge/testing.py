"""Assertions for the tests of a port."""

from __future__ import annotations

from typing import Any


def assert_same(torch_model: Any, jax_function: Any, *inputs: Any, **options: Any) -> None:
    """Raises where a JAX port computes something else than its PyTorch original.

    Args:
      torch_model, jax_function, inputs, options: the arguments of `bridge.compare`.

    Raises:
      AssertionError: the two part; its text is the report.
    """
    from bridge.compared.comparison import compare

    report = compare(torch_model, jax_function, *inputs, **options)
    if report.parts or report.gradients:
        raise AssertionError(str(report))
