"""The emitters write the stored texts, so that a change of them shows in review."""

from __future__ import annotations

import difflib

from bridge.lang.dtypes import FLOATING
from bridge.lang.emission.cuda import KINDS
from bridge.lang.instructions import REDUCTIONS
from bridge.lang.roles import ANNOTATIONS, OF_BLOCKS, Quantized, Scale, Segments
from tests.lang.snapshots.programs import FOLDER, requests, texts


def test_the_emitters_write_the_stored_texts() -> None:
    written = dict(texts())
    stored = {path: path.read_text() for path in FOLDER.glob("*/*.txt")}
    changes: list[str] = []
    for path in sorted(written | stored):
        old, new = (each.get(path, "").splitlines() for each in (stored, written))
        name = str(path.relative_to(FOLDER))
        changes += difflib.unified_diff(
            old, new, f"stored {name}", f"written {name}", "", "", 1, ""
        )
    assert not changes, "\n".join(
        [
            "Generated code has changed. If it was meant to, run `python -m tests.lang.snapshots` "
            "and commit the texts:",
            *changes[:100],
        ]
    )


def test_each_part_of_the_emitters_writes_some_of_the_texts() -> None:
    asked = [*requests().values()]
    programs = [each.program for each in asked]
    of_8_bits = {Quantized, Scale}  # read as a Full and a PerRow, in another dtype
    other_blocks = {OF_BLOCKS[n] for n in (16, 64, 128)}  # another number in the same code
    read = {operand.role for program in programs for operand in program.operands}
    # Programs read the lengths of segments as a label.
    assert read == {*ANNOTATIONS} - of_8_bits - other_blocks - {Segments}
    assert {*FLOATING} <= {dtype for each in asked for dtype in each.dtypes}
    operations = {node.operation for program in programs for node in program.nodes}
    assert operations >= REDUCTIONS
    kinds = [each.emitted().kinds for each in asked]
    assert all(any(kind >> number & 1 for kind in kinds) for number in range(len(KINDS)))
    in_cpp, in_cuda = (
        "\n".join(text for path, text in texts() if path.parent.name == name)
        for name in ("cpu", "cuda")
    )
    for word in ("kFetchesAhead", "kFolds", "kPicks"):
        assert f"{word} = true" in in_cpp
    for word in ("rows.cuh", "column_driver.cuh", "w.aside(", "store_constants(part)", "stage<"):
        assert word in in_cuda
