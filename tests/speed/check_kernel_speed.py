#!/ usr / bin / env python3
"""Holds kernel_speed to its command line, its table of rows and its records.

check_kernel_speed.py PROGRAM                       every row, on this CPU (kernel_speed_dry)
check_kernel_speed.py PROGRAM --without-a-device    what needs no GPU (kernel_speed)
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

COPIES = 8
# What each kind of call moves per element : of each operand the bytes of its dtype, those of the
# part that a causal rule leaves visible apart.In backward rows y, g and dx of softmax.
ELEMENT_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
FEWEST = {
    "copy.driver": 2,
    "copy.kernel": 2,
    "softmax.forward": 2,
    "softmax.forward_masked": 2,
    "softmax.backward": 3,
}


def run(
    program: Path, *arguments: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, env={**os.environ, **(env or {})}
    )


def records(path: Path, ended: bool = True) -> list[dict[str, Any]]:
    """Those of the whole file, or without the piece of a line that a program left as it ended."""
    *lines, rest = path.read_text().split("\n")
    assert rest == "" or not ended, rest
    return [json.loads(line) for line in lines]


def expect_error(done: subprocess.CompletedProcess[str], status: int, words: str) -> None:
    assert done.returncode == status, (done.args, done.returncode, done.stderr)
    assert done.stdout == "", done.stdout
    lines = done.stderr.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("kernel_speed: "), lines
    assert words in lines[0], (words, lines)


def listed(program: Path, *arguments: str) -> dict[str, tuple[int, int, float]]:
    """Rows, columns and megabytes of every row by its name."""
    done = run(program, "--list", *arguments)
    assert done.returncode == 0, done.stderr
    found = {}
    for line in done.stdout.splitlines():
        name, rows, _, cols, megabytes, *_ = line.split()
        assert name not in found, name
        found[name] = (int(rows), int(cols), float(megabytes))
    return found


def check_list(program: Path) -> list[str]:
    rows = listed(program)
    names = list(rows)
    for dtype in ("bfloat16", "float16", "float32"):
        for kind in (
            *(kind for kind in FEWEST if not kind.startswith("copy")),
            "softmax.forward_causal",
            "softmax.backward_causal",
        ):
            for cols in (256, 1024, 4096, 16384, 32768, 65536, 262144, 4099, "64x262144"):
                assert f"{kind}.{dtype}.{cols}" in rows, (kind, dtype, cols)

    # The ceiling first, then every op and pass at once.
    assert all(name.startswith("copy.") for name in names[:COPIES]), names[:COPIES]
    soon = " ".join(names[COPIES : COPIES + 10])
    for part in (
        "softmax.forward.",
        "softmax.forward_masked.",
        "softmax.forward_causal.",
        "softmax.backward.",
    ):
        assert part in soon, (part, soon)

    # On a GPU every array is far larger than its L2 cache, unless the rows are to be few.
    for name, (_, cols, megabytes) in rows.items():
        last = name.rpartition(".")[2]
        assert last.endswith(str(cols)), name
        assert "x" in last or 1000 < megabytes < 7000, (name, megabytes)
    causal = rows["softmax.forward_causal.bfloat16.4096"]
    plain = rows["softmax.forward.bfloat16.4096"]
    assert causal[0] == plain[0]
    assert 0.74 < causal[2] / plain[2] < 0.76, (causal, plain)  # 1.5 of 2 operands

    masked = rows["softmax.forward_masked.bfloat16.4096"]
    assert masked[0] == plain[0]
    assert 1.015 < masked[2] / plain[2] < 1.016, (masked, plain)  # a byte for 16 heads, of 4 each

    part = listed(program, "--only", "softmax.backward.")
    assert list(part)[COPIES:] == [name for name in names if "softmax.backward." in name]
    return names


def check_arguments(program: Path) -> None:
    for value in ("soon", "-1", "nan", "1s"):
        expect_error(run(program, "--seconds", value), 2, "--seconds")
    expect_error(run(program, "--only", "no such row"), 2, "no such row")
    expect_error(run(program, "--profile", "softmax"), 2, "softmax")
    expect_error(run(program, "--jsonl"), 2, "--jsonl")
    expect_error(run(program, "--quick"), 2, "--quick")


def profiled(program: Path) -> list[str]:
    done = run(program, "--list-profile")
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def fewest_bytes(row: dict[str, Any]) -> int:
    """Of the operands that have an element for each of x."""
    kind = f"{row['op']}.{row['kind']}"
    rows = row["batch"] * row["heads"] * row["queries"]
    count = rows * row["cols"]
    if kind.endswith("_causal"):
        hidden = sum(max(0, row["queries"] - 1 - i) for i in range(row["queries"]))
        seen = count - row["batch"] * row["heads"] * hidden
        reads = 1 if "forward" in kind else 2
        return ELEMENT_BYTES[row["dtype"]] * (count + reads * seen)
    return FEWEST[kind] * ELEMENT_BYTES[row["dtype"]] * count


def check_row(row: dict[str, Any]) -> None:
    assert "error" not in row, row
    rest = row["bytes"] - fewest_bytes(row)
    masks = row["batch"] * row["queries"] * row["cols"] if row["kind"] == "forward_masked" else 0
    assert rest == masks, row
    for launch in ("one_by_one", "graph"):
        times = row[launch]
        assert 0 < times["lower_quartile"] <= times["seconds"] <= times["upper_quartile"], row
        rate = row["bytes"] / times["seconds"] * 1e-9
        assert abs(times["gb_per_second"] / rate - 1) < 1e-3, row
        is_measure = row["op"] == "copy" and "x" not in row["name"].rpartition(".")[2]
        assert ("of_copy" in times) != is_measure, row


def check_runs(program: Path, names: list[str], folder: Path) -> None:
    file = folder / "all.jsonl"
    done = run(program, "--jsonl", str(file))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    first, *rows, last = records(file)
    assert first["record"] == "device"
    assert first["rows"] == len(names)
    assert [row["name"] for row in rows] == names
    assert any(row["heads"] > 1 for row in rows if row["kind"] == "forward_masked")
    for row in rows:
        check_row(row)
        assert row["name"] in done.stdout
    assert last["record"] == "end"
    assert last["complete"] is True
    assert (last["measured"], last["failed"]) == (len(names), 0)

    # No time : nothing is measured, and the file says so.
    done = run(program, "--jsonl", str(file), "--seconds", "0")
    assert done.returncode == 0, done.stderr
    first, last = records(file)
    assert first["record"] == "device"
    assert last["complete"] is False
    assert last["measured"] == 0

    # Whatever ends the program, what it has said is in the file.
    with subprocess.Popen([program, "--jsonl", str(file)], stdout=subprocess.PIPE, text=True) as it:
        assert it.stdout is not None
        said = [it.stdout.readline() for _ in range(12)]
        it.kill()
        said += it.stdout.readlines()
    kept = [record["name"] for record in records(file, ended=False) if record["record"] == "row"]
    assert kept[: len(said) - 2] == [line.split()[0] for line in said[2:]], (kept, said)

    # A call that fails is a record of its row, and the exit status; the others are measured.
    done = run(program, "--jsonl", str(file), "--only", "masked", env={"BRIDGE_CPU_ISA": "none"})
    assert done.returncode == 1
    _, *rows, last = records(file)
    assert all(("error" in row) == (row["op"] != "copy") for row in rows)
    assert all("BRIDGE_CPU_ISA" in row["error"] for row in rows if row["op"] != "copy")
    assert last["failed"] == len(rows) - COPIES > 0
    assert last["complete"] is True

    expect_error(run(program, "--jsonl", str(folder)), 2, str(folder))
    for name in profiled(program):
        done = run(program, "--profile", name)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done


def check_no_device(program: Path, folder: Path) -> None:
    file = folder / "none.jsonl"
    done = run(program, "--jsonl", str(file), "--seconds", "0", "--library", str(folder / "none"))
    if done.returncode == 3:
        expect_error(done, 3, "no CUDA device answers")
    else:  # there is one
        expect_error(done, 2, "--library")
    assert not file.exists()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("program", type=Path)
    parser.add_argument("--without-a-device", action="store_true")
    arguments = parser.parse_args()
    names = check_list(arguments.program)
    check_arguments(arguments.program)
    chosen = profiled(arguments.program)
    assert len(chosen) == len(set(chosen)) == 3
    assert set(chosen) <= set(names)
    with tempfile.TemporaryDirectory() as folder:
        if arguments.without_a_device:
            check_no_device(arguments.program, Path(folder))
        else:
            check_runs(arguments.program, names, Path(folder))
    print(f"{len(names)} rows, as expected")
    return 0


if __name__ == "__main__":
    sys.exit(main())
