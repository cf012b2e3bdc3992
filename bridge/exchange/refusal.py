"""Errors of conversion: a description of the leaf, the reason, and the remedy."""

from __future__ import annotations

from typing import Any


class Refused(Exception):
    """The error for a leaf that cannot be converted; `at` makes it a `kind` with the leaf's path.

    Args:
        kind: the exception that the caller sees: TypeError, ValueError or BufferError.
        leaf: the tensor or array; the message describes it.
        why: the reason, as a predicate of the leaf.
        fix: the remedy, in one clause.
    """

    def __init__(self, kind: type[Exception], leaf: Any, why: str, fix: str) -> None:
        super().__init__(why)
        self.kind = kind
        self.text = f"{describe(leaf)} {why}: {fix}"

    def at(self, function: str, path: str) -> Exception:
        """Returns the exception that names the function and the leaf's path in the tree."""
        return self.kind(f"{function}: {path or 'the argument'}: {self.text}")


# Reason and remedy for a dtype that can cross only as bytes, which one side copies.
NO_CODE = (
    "has a dtype that the DLPack of this torch or jaxlib does not know, and copy=False",
    "pass copy=None",
)


def describe(leaf: Any) -> str:
    """Describes a tensor or array, without reading its values."""
    parts = [type(leaf).__name__]
    for name, read in (
        ("shape", lambda: tuple(leaf.shape)),
        ("strides", lambda: tuple(leaf.stride())),
        ("dtype", lambda: leaf.dtype),
        ("device", lambda: _device(leaf)),
    ):
        try:
            parts.append(f"{name} {read()}")
        except Exception:  # a tracer has no device, an array no stride(): list the rest
            continue
    return ", ".join(parts)


def _device(leaf: Any) -> Any:
    device = leaf.device
    if hasattr(device, "device_set"):  # a sharding over several devices
        return sorted(str(member) for member in device.device_set)
    return device
