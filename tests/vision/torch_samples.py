"""The samples with which torch tests its own functions."""

from __future__ import annotations

import importlib.util
import sys
import types
import unittest
from collections.abc import Iterator
from typing import Any

import torch


def samples_of(name: str) -> Iterator[Any]:
    """Yields torch's samples of an op, in float32 and without gradients."""
    if "expecttest" not in sys.modules and importlib.util.find_spec("expecttest") is None:
        # torch's module of test functions imports it, but the samples do not use it.
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules.setdefault("expecttest", stand_in)
    from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db:  # one for each mode of interpolate
        if info.name == name:
            yield from info.sample_inputs("cpu", torch.float32, requires_grad=False)
