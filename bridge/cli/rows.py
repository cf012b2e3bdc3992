"""What a long command finds, row by row: kept, written as JSON lines, and read back from them.

Every line of such a file is an object:

- the first: {"header": {...}}: command, machine, options, `cases`, how many there are to do;
- one for each row, as soon as it is known: {"case": which, "op": ..., "seconds": since the start,
  "row": {...}};
- the last, which the file of a run that was killed lacks: {"end": {"seconds": ..., "complete":
  whether all cases were done, ...}}.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, TextIO

from bridge.cli.commands import load
from bridge.cli.errors import CommandError
from bridge.cli.outputs import naming

Row = dict[str, Any]

# Each module has report(recording), the report that the command writes.
REPORTS = {"parity": "bridge.cli.parity.command", "bench": "tools.bench.command"}


class Recording:
    """What was found so far, in memory and, where there is a path, line by line in a file.

    Attributes:
      header, records, end: the objects of the lines; `records` as they came, `end` empty as long as
        the run goes on.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.header: dict[str, Any] = {}
        self.records: list[dict[str, Any]] = []
        self.end: dict[str, Any] = {}
        self._path, self._file, self._start = path, None, 0.0

    _file: TextIO | None

    def begin(self, header: dict[str, Any]) -> None:
        """Opens the file and writes the first line."""
        if self._path is not None:
            with naming("jsonl", self._path):
                self._file = self._path.open("w")
        self.header, self._start = header, time.monotonic()
        self._write({"header": header})

    def add(self, case: int, op: str, row: Row) -> None:
        record = {"case": case, "op": op, "seconds": self._seconds(), "row": row}
        self.records.append(record)
        self._write(record)

    def finish(self, complete: bool, **facts: Any) -> None:
        """Writes the last line and closes the file."""
        self.end = {"seconds": self._seconds(), "complete": complete, **facts}
        self._write({"end": self.end})
        if self._file is not None:
            self._file.close()

    def _seconds(self) -> float:
        return round(time.monotonic() - self._start, 1)

    def _write(self, line: dict[str, Any]) -> None:
        if self._file is not None:
            assert self._path is not None
            with naming("jsonl", self._path):
                print(json.dumps(line, allow_nan=False), file=self._file, flush=True)

    def rows(self) -> list[tuple[str, Row]]:
        """Op and row, in the order of the cases, whatever the order in which they were done."""
        ordered = sorted(self.records, key=lambda record: record["case"])
        return [(record["op"], record["row"]) for record in ordered]

    def facts(self) -> dict[str, Any]:
        """What every report says of its run, a run that was killed included."""
        last = self.records[-1]["seconds"] if self.records else 0.0
        return {
            **self.header,
            "seconds": last,
            "complete": False,
            "cases_done": len({record["case"] for record in self.records}),
            **self.end,
        }


def unfinished(report: dict[str, Any]) -> str | None:
    """A sentence for a report that is not of all cases."""
    if report["complete"]:
        return None
    done, cases = report["cases_done"], report["cases"]
    return f"partial: the run ended when {done} of {cases} cases were done"


def read(path: Path | str) -> dict[str, Any]:
    """Returns the report of a file of JSON lines, as the command itself would have written it.

    What is behind the last whole line, where a run was killed while it wrote, is left out.

    Raises:
      CommandError: if the file cannot be read or is of another kind.
    """
    with naming("jsonl", path := Path(path)):
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    recording = Recording()
    try:
        recording.header = json.loads(lines[0])["header"]
        for line in map(json.loads, lines[1:]):
            if "end" in line:
                recording.end = line["end"]
            else:
                recording.records.append(line)
        command = REPORTS[recording.header["command"]]
    except (LookupError, TypeError, ValueError) as error:
        raise CommandError(f"{path}: not a file that --jsonl wrote") from error
    return load(command).report(recording)
