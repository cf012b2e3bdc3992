"""Results on fixed inputs, hashed: each op, dtype, shape and order of derivative."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.cases import BiasDropoutAdd, BiasGelu, Case, Inputs, Softmax
from tests.frameworks import DTYPES, FORMS
from tests.golden.catalogue import CATALOGUE, Declared
from tests.golden.invariant import INVARIANT, Own
from tests.golden.model import MODEL, Finite, Special, Steps
from tests.golden.products import LinearCrossEntropy, LinearDivergence, LinearTokenLogProbs
from tests.golden.vision import VISION

BITS = Path(__file__).with_name("bits.json")

_SHAPES = [(1,), (1, 1), (5, 3), (16, 8), (3, 0), (300, 1), (17, 9), (127, 33), (129, 64)]
_SHAPES += [(2, 65, 17), (1, 4099), (1025, 65)]

CASES: tuple[Case, ...] = (
    *(BiasGelu(shape, FORMS[i % 3]) for i, shape in enumerate(_SHAPES)),
    *(
        BiasDropoutAdd(shape, (0.1, 0.5, 0.9)[i % 3], i % 4 != 1, i % 4 != 2, offset=i)
        for i, shape in enumerate(_SHAPES)
    ),
    Softmax((4,)),
    Softmax((5, 1), scale=0.5),
    Softmax((3, 0)),
    Softmax((3, 5, 33), scale=-0.7),
    Softmax((7, 1024), (7, 1024), scale=0.7),
    Softmax((2, 3, 4, 35), (2, 1, 4, 35), scale=0.3, mask_dtype="uint8"),
    Softmax((2, 3, 2051), (2, 1, 2051), scale=-0.1),
    Softmax((2, 6, 6), causal=True, scale=0.5),
    Softmax((3, 50, 37), causal=True, scale=2.0),
    Softmax((200, 130), causal=True, scale=0.5),
    Softmax((700, 20), scale=3.0),
    Softmax((2, 8193), scale=0.25),
    *CATALOGUE,
    LinearCrossEntropy((5, 3)),
    LinearCrossEntropy((17, 9)),
    LinearCrossEntropy((4, 1300)),
    LinearTokenLogProbs((17, 9)),
    LinearDivergence((17, 9)),
    *INVARIANT,
    *MODEL,
    *VISION,
)
# Dtypes of x and bias, and of a residual if there is one.
_MIXES = (
    ("bfloat16", "float32", "bfloat16"),
    ("float32", "float16", "bfloat16"),
    ("float16", "bfloat16", "float64"),
)


def dtypes_of(case: Case) -> list[tuple[str, ...]]:
    """Returns tuples with one dtype for all arguments, or one for each."""
    own: list[tuple[str, ...]] = [(dtype,) for dtype in DTYPES]
    count = len(case.argument_shapes())
    if isinstance(case, LinearCrossEntropy | Own):  # which takes one dtype
        return own
    if isinstance(case, Finite):
        mixed = ("bfloat16", "float32", "float16")[:count]
        return [*own, mixed] if case.mixes and count > 1 else own
    if isinstance(case, Declared):  # three dtypes, and one mix of some
        mix = ("bfloat16", "float32", "bfloat16", "float16")
        return own[1:] if count == 1 else [*own[1:], mix[:count]]
    return own if count == 1 else own + [mix[:count] for mix in _MIXES]


def every() -> Iterator[tuple[str, Case, tuple[str, ...]]]:
    """Yields the name of the stored hashes, the case, and its dtypes."""
    for case in CASES:
        for dtypes in dtypes_of(case):
            yield f"{case} {' '.join(dtypes)}", case, dtypes


class _Numbers:
    """Replaces NumPy's generator, whose numbers may differ between its versions."""

    def __init__(self) -> None:
        self._random = np.random.RandomState(20_261_122)  # this stream is frozen

    def standard_normal(self, shape: tuple[int, ...]) -> Any:
        """Returns multiples of 2⁻¹⁶ from −4 to 4, which are not normal numbers."""
        return np.asarray(self._random.randint(-(2**18), 2**18, shape) / 2.0**16)


_SPECIAL = (0.0, -0.0, np.inf, 1e-40, -np.inf, -1e-310, np.nan, 5.9e-8, -0.7518, 60000.0)


def inputs_of(case: Case, dtypes: tuple[str, ...]) -> Inputs:
    inputs = case.draw(_Numbers(), *dtypes)  # type: ignore[arg-type]
    is_finite = isinstance(case, Finite) and not isinstance(case, Special)
    if is_finite or isinstance(case, LinearCrossEntropy):
        return inputs
    # Directions of second derivatives have none, because XLA's own additions flush subnormal
    # numbers.
    with np.errstate(over="ignore"):
        for array in (*inputs.arguments, inputs.cotangent, *inputs.tangents):
            flat = array.reshape(-1)
            for place, value in zip(range(6, flat.size, 29), _SPECIAL, strict=False):
                flat[place] = value
    return inputs


def hashes(framework: Any, case: Case, inputs: Inputs) -> list[str]:
    """Returns hashes of the value, and the first and second derivatives, in both modes.

    Steps of an optimizer have a value alone.
    """
    if isinstance(case, Steps):
        return [_hash([framework.call(case.function(framework), *inputs.arguments)])]
    found = framework.everything(
        case.function(framework),
        inputs.arguments,
        inputs.cotangent,
        inputs.tangents,
        inputs.directions,
    )
    orders = [[found.value, found.again], [*found.gradients, found.tangent], found.second]
    return [_hash([case.compared(array) for array in arrays]) for arrays in orders]


def _hash(arrays: list[Any]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]
