"""Tables of hashes as text files: one line for each result.

The lines that begin with # are facts about the machine. The last one has the number of the rows and
the SHA-256 of all lines above it, so that a damaged file is recognized. A file has no date and no
commit: it changes only with the machine, the versions or the bits.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bridge.cli.errors import CommandError
from bridge.cli.outputs import naming

# Another format of the file, other operands (`grid.SEED` is one reason) or another kind of hash
# have another number.
FORMAT = 1
_FIRST = "# bridge parity table, format "
_LAST = re.compile(r"# end: (\d+) rows, sha256 ([0-9a-f]{64})")
_BETWEEN = " | "

Key = tuple[str, str, str, str]  # form, dtypes, place, quantity


@dataclass(frozen=True)
class Table:
    """The hashes of one machine.

    Attributes:
      facts: the machine, its versions and the extent of the table.
      rows: a hash for each form, dtypes, place and quantity.
    """

    facts: Mapping[str, str]
    rows: Mapping[Key, str]

    def text(self) -> str:
        lines = [f"{_FIRST}{FORMAT}", *(f"# {name}: {fact}" for name, fact in self.facts.items())]
        lines += [_BETWEEN.join((*key, found)) for key, found in self.rows.items()]
        return "\n".join([*lines, f"# end: {len(self.rows)} rows, sha256 {_sum(lines)}", ""])


def _sum(lines: list[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def read(path: Path) -> Table:
    """Returns the table of a file.

    Raises:
      CommandError: if the file cannot be read, is no table, has another format, or is damaged.
    """
    with naming("against", path):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    if not lines or not lines[0].startswith(_FIRST):
        raise CommandError(
            f"--against {path}: no table of hashes; `python -m bridge parity --export FILE` writes "
            "one"
        )
    number = lines[0].removeprefix(_FIRST)
    if number != str(FORMAT):
        writer = _facts(lines).get("bridge")
        by = f", written by bridge {writer}" if writer else ""
        raise CommandError(
            f"--against {path}: a table of format {number}{by}, and this bridge reads format "
            f"{FORMAT}; compare with the version that wrote it, or write the table again"
        )
    end = _LAST.fullmatch(lines[-1])
    rows = [line.split(_BETWEEN) for line in lines[1:-1] if not line.startswith("# ")]
    if end is None:
        why = "its last line is missing"
    elif len(rows) != int(end[1]):
        why = f"it has {len(rows)} of {end[1]} rows"
    elif end[2] != _sum(lines[:-1]) or any(len(row) != 5 for row in rows):
        why = "a line differs from the one that was written"
    else:
        keyed = {(form, dtypes, place, what): found for form, dtypes, place, what, found in rows}
        return Table(_facts(lines), keyed)
    raise CommandError(f"--against {path}: damaged, {why}; copy the file again")


def _facts(lines: list[str]) -> dict[str, str]:
    split = (line[2:].split(": ", 1) for line in lines[1:-1] if line.startswith("# "))
    return {pair[0]: pair[1] for pair in split if len(pair) == 2}
