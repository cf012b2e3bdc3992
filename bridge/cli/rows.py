"""The recorded rows of a long command: stored, written as JSON lines, and read back.

Every line of such a file is an object:

- the first: {"header": {...}}: command, machine, options, and `cases`, the number of cases;
- one for each row, as soon as it is known: {"case": its index, "op": ..., "seconds": since the
  start, "row": {...}};
- the last, missing in the file of a run that was killed: {"end": {"seconds": ..., "complete": true
  if all cases were done, ...}}.
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

# Each module has report(recording), which returns the report of the command.
REPORTS = {
    "parity": "bridge.cli.parity.command",
    "parity table": "bridge.cli.parity.proof",
    "bench": "tools.bench.command",
}


class Recording:
    """The rows found so far, in memory and, if there is a path, line by line in a file.

    Attributes:
      header, records, end: the objects of the lines; `records` in the order of arrival, `end` empty
        during the run.
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
        """Returns (op, row) pairs in the order of the cases, not in the order of arrival."""
        ordered = sorted(self.records, key=lambda record: record["case"])
        return [(record["op"], record["row"]) for record in ordered]

    def facts(self) -> dict[str, Any]:
        """Returns the facts of a run for its report, also for a run that was killed."""
        last = self.records[-1]["seconds"] if self.records else 0.0
        return {
            **self.header,
            "seconds": last,
            "complete": False,
            "cases_done": len({record["case"] for record in self.records}),
            **self.end,
        }


def unfinished(report: dict[str, Any]) -> str | None:
    """Returns a sentence if the report does not contain all cases, else None."""
    if report["complete"]:
        return None
    done, cases = report["cases_done"], report["cases"]
    return f"partial: the run ended when {done} of {cases} cases were done"


def read(path: Path | str) -> dict[str, Any]:
    """Returns the report of a file of JSON lines, the same as the command's own report.

    Text after the last whole line, from a run that was killed while it wrote, is ignored.

    Raises:
      CommandError: if the file cannot be read or has another format.
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
