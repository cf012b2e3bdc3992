"""`all_gather` for every framework: gradient rules, checks of arguments, and messages.

Each rank of a group passes an array `x`, and all ranks get the same array. It has the ranks' arrays
along `dim` (tiled) or on a new dimension `dim` (stacked), in the order of the group. The caller
chooses how a cotangent `g` of this array becomes a cotangent of `x`:

  "sum"    dx = Σ_ranks g[this rank's part]         the derivative of the sum of all ranks' losses
  "local"  dx = g[this rank's part]                 no communication
  "mean"   dx = Σ_ranks g[this rank's part] ÷ W     W ranks

The tangent is gathered like the array, for every rule. Second derivatives are those of the rules as
written here: "sum" and "mean" sum over ranks, so their transpose is a gather; "local" is a slice,
whose transpose fills in zeros for the other ranks.

A rank that raised an error alone would leave the others waiting. So arguments are not checked on
each rank by itself: every rank sends a `Signature` of its arguments, faults included, and applies
`fault_of` to all signatures. It is the same function of the same numbers everywhere, so either all
ranks raise the same error or none does.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bridge.lang.dtypes import DTYPES

GRAD_RULES = ("sum", "local", "mean")

# A rank sends the position of its dtype in this table.
GATHERED_DTYPES = (
    *DTYPES,
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *("complex32", "complex64", "complex128"),
)

# All signatures have this length: header fields, then sizes.
_SIZES = 8
_HEADER = 8
SIGNATURE_LENGTH = _HEADER + _SIZES

# Wrong statements of a drop-in's caller about the group, and the refusal of a rank's arguments.
CLAIMS = (
    "",
    "args.world_size is not the number of ranks in the group",
    "args.local_rank (or args.rank) is not the rank in the group, which counts over all machines",
    "args has no integers world_size and local_rank (or rank)",
    "arguments were refused there",
)
REFUSED = len(CLAIMS) - 1

_OUT_OF_INT64 = -(1 << 63)


def check_grad_rule(function: str, grad: Any) -> None:
    """Raises ValueError unless `grad` is the name of a gradient rule."""
    if not (isinstance(grad, str) and grad in GRAD_RULES):
        raise ValueError(
            f"{function}: grad is {grad!r}, expected one of "
            f"{', '.join(repr(rule) for rule in GRAD_RULES)}"
        )


@dataclass(frozen=True)
class Signature:
    """The arguments of one rank to `all_gather`, right or wrong.

    Attributes:
      dtype: position in GATHERED_DTYPES; -1 for another dtype, -2 if x is not a dense array.
      dim: as the caller gave it; -2**63 if it is no integer, or too large.
      tiled: True to concatenate arrays, False to stack them on a new dimension.
      rule: position in GRAD_RULES, -1 for another word.
      backward: True if a backward pass will communicate with the other ranks.
      shape: of x; with more than eight dimensions, the last number stands for the rest.
      ndim: the number of dimensions of x.
      claim: a wrong statement of the caller about this rank, or the refusal of its arguments: a
        position in CLAIMS.
      others: a checksum of the text of all other arguments.
    """

    dtype: int
    dim: int
    tiled: bool
    rule: int
    backward: bool
    ndim: int
    shape: tuple[int, ...]
    claim: int = 0
    others: int = 0

    @classmethod
    def of(
        cls,
        dtype: str | None,
        shape: Sequence[int],
        dim: Any,
        tiled: Any,
        grad: Any,
        needs_grad: bool,
        claim: int = 0,
        others: str = "",
    ) -> Signature:
        """Makes a signature from unchecked arguments; `dtype` is None if x is not a dense array.

        `others` is the text of the other arguments, which must be the same on all ranks.
        """
        if dtype is None:
            code = -2
        else:
            code = GATHERED_DTYPES.index(dtype) if dtype in GATHERED_DTYPES else -1
        try:
            number = _OUT_OF_INT64 if isinstance(dim, bool) else operator.index(dim)
        except TypeError:
            number = _OUT_OF_INT64
        if not -(1 << 63) <= number < 1 << 63:
            number = _OUT_OF_INT64
        rule = GRAD_RULES.index(grad) if isinstance(grad, str) and grad in GRAD_RULES else -1
        sizes = tuple(int(size) for size in shape)
        if len(sizes) > _SIZES:
            sizes = (*sizes[: _SIZES - 1], _checksum(sizes[_SIZES - 1 :]))
        backward = needs_grad and grad != "local"
        checksum = _checksum(map(ord, others))  # torch 2.11 does not trace bytes
        return cls(code, number, bool(tiled), rule, backward, len(shape), sizes, claim, checksum)

    def numbers(self) -> tuple[int, ...]:
        """Returns the SIGNATURE_LENGTH numbers of 64 bits to send."""
        header = (self.dtype, self.dim, self.tiled, self.rule, self.backward, self.ndim)
        return (
            *map(int, header),
            self.claim,
            self.others,
            *self.shape,
            *[0] * (_SIZES - len(self.shape)),
        )

    @classmethod
    def from_numbers(cls, numbers: Sequence[int]) -> Signature:
        dtype, dim, tiled, rule, backward, ndim, claim, others, *sizes = numbers
        kept = tuple(sizes[: min(ndim, _SIZES)])
        return cls(dtype, dim, bool(tiled), rule, bool(backward), ndim, kept, claim, others)


def _checksum(numbers: Iterable[int]) -> int:
    """A checksum of 31 bits, in arithmetic that torch.compile can trace; it cannot trace zlib."""
    found = 0
    for number in numbers:
        found = (found * 1_000_003 + number) % (1 << 31)
    return found


def fault_of(
    function: str,
    signatures: Sequence[Signature],
    found: Callable[[], Sequence[str]],
    dim: str = "dim",
    array: str = "x",
    advice: str = "",
    others: str = "",
) -> Exception | None:
    """Returns the error that all ranks must raise, or None if they may exchange.

    Args:
      function: the start of the message.
      signatures: of all ranks, in the order of the group.
      found: returns a description of this rank's arguments, with details that numbers cannot tell.
      dim: the name of the argument for the dimension.
      array: the name of the argument for the array.
      advice: how to make shapes equal, if not by padding.
      others: this rank's text of all other arguments.
    """
    several = len(signatures) > 1
    for rank, signature in enumerate(signatures):
        fault = _fault_of_one(signature, dim, array)
        if fault is not None:
            error, words = fault
            where = f" (on rank {rank} of the group; here {', '.join(found())})"
            return error(
                f"{function}: {words}{where if several else ', got ' + ', '.join(found())}"
            )
    first = signatures[0]
    for rank, signature in enumerate(signatures):
        for field, name in _COMPARED:
            theirs, expected = getattr(signature, field), getattr(first, field)
            if theirs != expected:
                show = _SHOWN.get(field, repr)
                words = advice if advice and field == "shape" else _ADVICE[field]
                return ValueError(
                    f"{function}: {name.format(dim=dim, array=array)} differs between ranks: "
                    f"{show(expected)} on rank 0, {show(theirs)} on rank {rank} of the group; "
                    f"{words}"
                )
        if signature.others != first.others:
            return ValueError(
                f"{function}: rank {rank} of the group was given something else than rank 0 beside "
                f"{array}, here {others}; it must be the same on all"
            )
    return None


def _fault_of_one(signature: Signature, dim: str, array: str) -> tuple[type[Exception], str] | None:
    if signature.claim:
        return ValueError, CLAIMS[signature.claim]
    if signature.dtype == -2:
        return TypeError, f"{array} is not a dense array or tensor of the framework that is called"
    if signature.dtype == -1:
        return (
            TypeError,
            f"{array} has an unsupported dtype, expected one of {', '.join(GATHERED_DTYPES)}",
        )
    if signature.rule == -1:
        return ValueError, f"grad is not one of {', '.join(map(repr, GRAD_RULES))}"
    if signature.ndim == 0:
        return (
            ValueError,
            f"{array} is 0-dimensional, expected at least one dimension (reshape it to [1])",
        )
    if signature.dim == _OUT_OF_INT64:
        return TypeError, f"{dim} is not an integer"
    places = signature.ndim if signature.tiled else signature.ndim + 1
    if not -places <= signature.dim < places:
        more = "" if signature.tiled else " with one dimension more"
        return ValueError, (
            f"{dim} is {signature.dim}, expected from {-places} to {places - 1} for {array} of "
            f"shape {_shape_words(signature)}{more}"
        )
    return None


def _shape_words(signature: Signature) -> str:
    if signature.ndim > _SIZES:
        return f"{signature.ndim} dimensions"
    return str(list(signature.shape))


def normalised_dim(dim: int, ndim: int, tiled: bool) -> int:
    """Returns `dim` counted from the front; it must be in range."""
    dim = operator.index(dim)
    return dim if dim >= 0 else dim + ndim + (not tiled)


_COMPARED = (
    ("dtype", "the dtype of {array}"),
    ("ndim", "the number of {array}'s dimensions"),
    ("shape", "the shape of {array}"),
    ("dim", "{dim}"),
    ("tiled", "tiled"),
    ("rule", "grad"),
    ("backward", "whether {array} requires a gradient"),
)
_SHOWN: dict[str, Any] = {
    "dtype": lambda code: GATHERED_DTYPES[code],
    "rule": lambda code: repr(GRAD_RULES[code]),
    "shape": lambda shape: str(list(shape)),
}
_ADVICE = {
    "dtype": "cast it on one of them",
    "ndim": "it must be the same on all",
    "shape": "it must be the same on all: pad to the largest and gather the lengths as well",
    "dim": "it must be the same on all",
    "tiled": "it must be the same on all",
    "rule": "it must be the same on all",
    "backward": "ranks that backpropagate would wait for those that do not",
}
