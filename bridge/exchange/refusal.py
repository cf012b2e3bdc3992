"""Why something cannot cross: what stands where, and the way out."""

from __future__ import annotations

from typing import Any


class Refused(Exception):
    """A leaf that cannot cross. Becomes `kind` at the border, with the leaf's path in front.

    Args:
        kind: the exception that the caller sees: TypeError, ValueError or BufferError.
        leaf: what was to cross; described in the message.
        why: what is in the way.
        fix: what to do, in one clause.
    """

    def __init__(self, kind: type[Exception], leaf: Any, why: str, fix: str) -> None:
        super().__init__(why)
        self.kind = kind
        self.text = f"{describe(leaf)} {why}: {fix}"

    def at(self, function: str, path: str) -> Exception:
        """The exception that names the function and the leaf's path in the tree."""
        return self.kind(f"{function}: {path or 'the argument'}: {self.text}")


# This is what is wrong, and the remedy, where a dtype goes as bytes that one side copies.
NO_CODE = (
    "has a dtype that the DLPack of this torch or jaxlib does not know, and copy=False",
    "pass copy=None",
)


def describe(leaf: Any) -> str:
    """Says what a tensor or array is, without touching its values."""
    parts = [type(leaf).__name__]
    for name, read in (
        ("shape", lambda: tuple(leaf.shape)),
        ("strides", lambda: tuple(leaf.stride())),
        ("dtype", lambda: leaf.dtype),
        ("device", lambda: _device(leaf)),
    ):
        try:
            parts.append(f"{name} {read()}")
        except Exception:  # a tracer has no device, an array no stride(): say what there is
            continue
    return ", ".join(parts)


def _device(leaf: Any) -> Any:
    device = leaf.device
    if hasattr(device, "device_set"):  # a sharding over several devices
        return sorted(str(member) for member in device.device_set)
    return device
