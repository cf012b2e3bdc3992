"""Writes programs of the catalogue as C++ or CUDA C++, for a build to compile ahead of time.

python cmake/write_ahead_of_time.py FOLDER ISA...
python cmake/write_ahead_of_time.py FOLDER cuda all|few
python cmake/write_ahead_of_time.py FOLDER hand

FOLDER gets program_<number>.cpp for each program, which is compiled for each instruction set, and
ahead_of_time_programs.cpp, the table of programs. The instruction sets have the names of
cpp/CMakeLists.txt, the strongest first; `none:v3` stands for a set without generated kernels. For
CUDA, FOLDER gets <digest>.cu for each program, and an index with the data that
bridge/generated/built_kernels.py needs; with `few` for the two shortest programs only. A file with
unchanged contents is not written again. The package is read from the source tree, because its
native module does not exist yet.
"""

from __future__ import annotations

import hashlib
import json
import sys
import types
from dataclasses import astuple
from pathlib import Path

# The package without the code of its __init__, and with an empty native module.
package = types.ModuleType("bridge")
package.__path__ = [str(Path(__file__).resolve().parent.parent / "bridge")]
sys.modules |= {"bridge": package, "bridge._native": types.ModuleType("bridge._native")}
# An editable install finds submodules in its own tree, which may be another.
sys.meta_path = [f for f in sys.meta_path if "ScikitBuild" not in type(f).__name__]
sys.path.insert(0, str(Path(__file__).resolve().parent))
import without_numpy  # noqa: E402

without_numpy.take_its_place()

from bridge.catalogue.ahead_of_time import cuda_requests, hand_written, requests  # noqa: E402
from bridge.generated.built_kernels import INDEX  # noqa: E402
from bridge.generated.requests import Request  # noqa: E402
from bridge.lang.emission.cpu import source_of  # noqa: E402

FEW = 2
_END = """namespace bridge {{
namespace BRIDGE_ISA_NAMESPACE {{
extern const interpreter::MachineTable program_{number};
const interpreter::MachineTable program_{number} = generated_table<Program>;
}}  // namespace BRIDGE_ISA_NAMESPACE
}}  // namespace bridge
"""


def program(number: int, request: Request) -> str:
    """Returns a program's kernels, named by its number instead of the name of its entry point."""
    of = request.program, request.arithmetic, request.dtypes, request.has_start
    text = source_of(*of, request.free())
    machine, _, entry = text.partition('extern "C"')
    assert entry
    return machine + _END.format(number=number)


def table(generated: list[Request], isas: list[str]) -> str:
    lines = ['#include "generated/cpu/ahead_of_time.h"']
    lines += ['#include "hand_written/softmax_machine.h"', "", "namespace bridge {", ""]
    for isa in isas:
        if ":" in isa:
            continue
        lines.append(f"namespace {isa} {{")
        lines += [
            f"extern const interpreter::MachineTable program_{i};" for i in range(len(generated))
        ]
        lines += [f"}}  // namespace {isa}", ""]
    lines += ["namespace interpreter {", "namespace {", ""]
    programs: list[tuple[Request, list[int], list[str]]] = []
    if any(":" not in isa for isa in isas):
        for number, request in enumerate(generated):
            tables = ["nullptr" if ":" in isa else f"&{isa}::program_{number}" for isa in isas]
            programs.append((request, request.free(), tables))
    for kernel, request, parameters in hand_written():
        names = [isa.removeprefix("none:") for isa in isas]
        tables = [f"&{isa}::softmax_machines.{kernel}" for isa in names]
        programs.append((request, list(range(parameters)), tables))
    rows = []
    for number, (request, free, tables) in enumerate(programs):
        words, dtypes = request.words(), request.dtype_numbers()
        numbers = memoryview(words).cast("i").tolist()
        lines.append(f"const int32_t kWords{number}[] = {{{', '.join(map(str, numbers))}}};")
        lines.append(f"const int32_t kDtypes{number}[] = {{{', '.join(map(str, dtypes))}}};")
        lines.append(f"const int32_t kFree{number}[] = {{{', '.join(map(str, [*free, 0]))}}};")
        rows.append(
            f"    {{kWords{number}, {len(numbers)}, kDtypes{number}, kFree{number}, {len(free)}, "
            f"{{{', '.join(tables)}}}}},  // {request.program.name}"
        )
    lines += [
        "",
        "const AheadOfTimeProgram kPrograms[] = {",
        *rows,
        "};",
        "",
        "}  // namespace",
        "",
    ]
    body = f"return {{kPrograms, {len(programs)}}};"
    lines += [f"AheadOfTimePrograms ahead_of_time_programs() {{ {body} }}", ""]
    return "\n".join([*lines, "}  // namespace interpreter", "}  // namespace bridge", ""])


def cpu_files(isas: list[str]) -> dict[str, str]:
    is_compiled = any(":" not in isa for isa in isas)
    found = list(requests()) if is_compiled else []
    files = {f"program_{number}.cpp": program(number, each) for number, each in enumerate(found)}
    return files | {"ahead_of_time_programs.cpp": table(found, isas)}


def hand_files() -> dict[str, str]:
    """Returns the table of the programs with CUDA kernels written by hand."""
    lines = ['#include "hand_written/softmax_cuda.h"', "", "namespace bridge::interpreter {"]
    lines += ["namespace {", ""]
    rows = []
    for number, (kernel, request, parameters) in enumerate(hand_written()):
        numbers = memoryview(request.words()).cast("i").tolist()
        dtypes = request.dtype_numbers()
        lines.append(f"const int32_t kWords{number}[] = {{{', '.join(map(str, numbers))}}};")
        lines.append(f"const int32_t kDtypes{number}[] = {{{', '.join(map(str, dtypes))}}};")
        words = f"kWords{number}, {len(numbers)}, kDtypes{number}"
        rows.append(f"    {{{words}, {parameters}, &{kernel}_kernel}},")
    lines += [
        "",
        "const HandWrittenProgram kPrograms[] = {",
        *rows,
        "};",
        "",
        "}  // namespace",
        "",
    ]
    body = f"return {{kPrograms, {len(rows)}}};"
    lines += [f"HandWrittenPrograms hand_written_programs() {{ {body} }}", ""]
    return {
        "hand_written_programs.cpp": "\n".join([*lines, "}  // namespace bridge::interpreter", ""])
    }


def cuda_files(count: int | None) -> dict[str, str]:
    files, index = {}, {}
    emitted = [(request, *astuple(request.emitted())) for request in cuda_requests()]
    for request, source, *facts in sorted(emitted, key=lambda each: len(each[1]))[:count]:
        digest = hashlib.sha256(source.encode()).hexdigest()
        files[f"{digest}.cu"] = source
        index[digest] = request.words().hex(), request.dtype_numbers(), request.free(), facts
    return files | {INDEX: json.dumps(index, indent=1)}


def main() -> None:
    folder, isas = Path(sys.argv[1]), sys.argv[2:]
    folder.mkdir(parents=True, exist_ok=True)
    if isas[0] == "cuda":
        files = cuda_files({"all": None, "few": FEW}[isas[1]])
    else:
        files = hand_files() if isas == ["hand"] else cpu_files(isas)
    for name, text in files.items():
        path = folder / name
        if not path.is_file() or path.read_text() != text:
            path.write_text(text)
    for path in folder.glob("*.c*"):
        if path.suffix in (".cpp", ".cu") and path.name not in files:
            path.unlink()


if __name__ == "__main__":
    main()
