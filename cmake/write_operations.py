"""Writes the C++ that follows from the table of operations (bridge/lang/operations.py).

python cmake/write_operations.py [--check]

cpp/program/operations.h gets the instruction set, and cpp/program/elementwise.h the scalar
operations as functions. Both stand in the repository: they are included by builds of the library,
the emulator and the checks, and by the compilation of programs while Python runs, none of which has
a step for them. `make` writes them before it builds. A file with unchanged contents is not written
again. With --check nothing is written, and the exit status is 1 if a file is out of date.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
import types
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The package without the code of its __init__, which needs the native module.
package = types.ModuleType("bridge")
package.__path__ = [str(ROOT / "bridge")]
sys.modules.setdefault("bridge", package)
# An editable install finds submodules in its own tree, which may be another.
sys.meta_path = [f for f in sys.meta_path if "ScikitBuild" not in type(f).__name__]
sys.path.insert(0, str(Path(__file__).resolve().parent))
import without_numpy  # noqa: E402

without_numpy.take_its_place()

from bridge.lang.instructions import (  # noqa: E402
    FIRST_OTHER,
    INSTRUCTIONS,
    OTHERS,
    Place,
    symbol_of,
)
from bridge.lang.operations import OLDEST_BYTECODE, SCALARS, VERSION  # noqa: E402
from bridge.lang.scalar import Scalar  # noqa: E402

_OPERATIONS = """\
// The instruction set, written by cmake/write_operations.py from bridge/lang/operations.py and
// bridge/lang/instructions.py.
#ifndef BRIDGE_INTERPRETER_OPERATIONS_H_
#define BRIDGE_INTERPRETER_OPERATIONS_H_

#include <stdint.h>

namespace bridge::interpreter {{

// Versions of the bytecode that this library reads; it has the last one.
constexpr int32_t kOldestVersion = {oldest}, kVersion = {version};

// The operation of an instruction.
enum Operation : int32_t {{
{names}
}};

// Returns how many registers an elementwise operation reads. Always inline, as is everything that
// files of several instruction sets use.
__attribute__((always_inline)) constexpr int arity(int32_t operation) {{
  switch (operation) {{
{arities}
    default:
      return 1;
  }}
}}

// Returns true if the operation takes many times as long as an addition.
constexpr bool takes_long(int32_t operation) {{
{long}
}}

__attribute__((always_inline)) constexpr bool is_reduction(int32_t operation) {{
{reductions}
}}

__attribute__((always_inline)) constexpr bool is_block_reduction(int32_t operation) {{
{blocks}
}}

// Returns true for a store, a column sum or a reduction: no section repeats it.
__attribute__((always_inline)) constexpr bool has_effect(int32_t operation) {{
{effects}
}}

}}  // namespace bridge::interpreter

#endif  // BRIDGE_INTERPRETER_OPERATIONS_H_
"""

_ELEMENTWISE = """\
// The elementwise operations of a program as functions, written by cmake/write_operations.py from
// bridge/lang/operations.py. The interpreter's loops over registers, generated programs and the
// CUDA kernels call them.
#ifndef BRIDGE_INTERPRETER_ELEMENTWISE_H_
#define BRIDGE_INTERPRETER_ELEMENTWISE_H_

#include "program/operations.h"
#include "program/scalar_functions.h"

namespace bridge::interpreter {{

// The first half of a function that one loop may start for many elements before another finishes
// them. Several functions have the same first half; math::Started holds its values.
template <int32_t kOperation, class Real>
BRIDGE_HD math::Started<Real> start(Real a) {{
  using math::GeluForm;
  switch (kOperation) {{  // a constant
{start}
  }}
}}

template <int32_t kOperation, class Real>
BRIDGE_HD Real finish(Real a, math::Started<Real> started) {{
  using math::GeluForm;
  switch (kOperation) {{  // a constant
{finish}
  }}
}}

template <int32_t kOperation, class Real>
BRIDGE_HD Real compute(Real a, Real b, Real c) {{
  using Precision = PrecisionOr<math::Single, Real>;
  using Float16 = PrecisionOr<math::SingleForFloat16, Real>;
  using Bfloat16 = PrecisionOr<math::SingleForBfloat16, Real>;
  using math::GeluForm;
  (void)b;
  (void)c;
  switch (kOperation) {{  // a constant
{compute}
  }}
}}

}}  // namespace bridge::interpreter

#endif  // BRIDGE_INTERPRETER_ELEMENTWISE_H_
"""


def _comment(text: str) -> list[str]:
    return textwrap.wrap(text, 100, initial_indent="  // ", subsequent_indent="  // ")


def _names() -> list[str]:
    """The members of the enumeration."""
    lines = _comment("Any section: to = f(a, b, c).")
    lines += [f"  {symbol_of(scalar.name)}," for scalar in SCALARS]
    lines += [*_comment("The number of elementwise operations."), "  kElementwise,"]
    place, value = None, f" = {FIRST_OTHER}"
    for other in OTHERS:
        if other.place is not place:
            place = other.place
            lines += _comment(place.value)
        lines += [*_comment(other.note), f"  {symbol_of(other.name)}{value},"]
        value = ""
    return lines


def _labels(names: Iterable[str]) -> list[str]:
    return [f"    case {symbol_of(name)}:" for name in names]


def _is_one_of(names: Iterable[str]) -> str:
    """The body of a function that is true for these operations."""
    lines = ["  switch (operation) {", *_labels(names), "      return true;"]
    return "\n".join([*lines, "    default:", "      return false;", "  }"])


def _arities() -> list[str]:
    lines = []
    for arity in (2, 3):
        lines += _labels(each.name for each in SCALARS if each.arity == arity)
        lines.append(f"      return {arity};")
    return lines


def _cases(scalars: Sequence[Scalar], text_of: Callable[[Scalar], str]) -> list[str]:
    """Cases with one return for equal texts; the last one is the default."""
    by_text: dict[str, list[str]] = {}
    for scalar in scalars:
        by_text.setdefault(text_of(scalar), []).append(scalar.name)
    lines = []
    for text, names in by_text.items():
        lines += [*_labels(names), f"      return {text};"]
    *_, names = by_text.values()
    default = f"    default:  // {', '.join(map(symbol_of, names))}"
    return [*lines[: -1 - len(names)], default, lines[-1]]


def files() -> dict[str, str]:
    """Returns the contents of the files, by their names in cpp/program."""

    def joined(lines: Iterable[str]) -> str:
        return "\n".join(lines)

    def at(*places: Place) -> str:
        return _is_one_of(each.name for each in OTHERS if each.place in places)

    halved = [each for each in SCALARS if each.halves]
    return {
        "operations.h": _OPERATIONS.format(
            oldest=OLDEST_BYTECODE,
            version=VERSION,
            names=joined(_names()),
            arities=joined(_arities()),
            long=_is_one_of(each.name for each in INSTRUCTIONS if each.cost.takes_long),
            reductions=at(Place.REDUCTION),
            blocks=at(Place.BLOCK),
            effects=at(Place.STORE, Place.REDUCTION),
        ),
        "elementwise.h": _ELEMENTWISE.format(
            start=joined(_cases(halved, lambda each: each.halves.start)),  # type: ignore[union-attr]
            finish=joined(_cases(halved, lambda each: each.halves.finish)),  # type: ignore[union-attr]
            compute=joined(_cases(SCALARS, lambda each: each.cpp)),
        ),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    status = 0
    for name, text in files().items():
        path = ROOT / "cpp" / "program" / name
        if path.is_file() and path.read_text() == text:
            continue
        if arguments.check:
            print(f"{path} is out of date: run python cmake/write_operations.py", file=sys.stderr)
            status = 1
        else:
            path.write_text(text)
    return status


if __name__ == "__main__":
    sys.exit(main())
