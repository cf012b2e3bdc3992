"""Files from a GPU become a record, and the tables of the docs quote the record."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from scripts.figures import records
from scripts.figures.proofs import gpu_records
from scripts.figures.speed import speed as speed_of
from scripts.gpu import libraries
from scripts.gpu.record import record

ROOT = Path(__file__).resolve().parents[2]
TIMES = {"seconds": 2e-3, "gb_per_second": 4000.0, "of_copy": 0.93}
ROW = {"record": "row", "op": "bias_gelu", "kind": "forward tanh", "dtype": "bfloat16"}
ROW |= {"shape": [65536, 4096], "one_by_one": TIMES}
DEVICE = {"record": "device", "name": "NVIDIA H200"}


def archive(folder: Path, stage: str, files: dict[str, str], **facts: Any) -> Path:
    known = {"stage": stage, "device": "NVIDIA H200", "rehearsal": False, "commit": "0123456789ab"}
    known["results"] = [{"step": "info", "word": "passed", "seconds": 1.0, "why": ""}]
    content = folder / stage
    content.mkdir()
    for name, text in (files | {"stage.json": json.dumps(known | facts)}).items():
        (content / name).write_text(text)
    path = folder / f"check_gpu-{stage}.tar.gz"
    with tarfile.open(path, "w:gz") as packed:
        for file in content.iterdir():
            packed.add(file, file.name)
    return path


def lines(*records: Any) -> str:
    return "".join(json.dumps(line) + "\n" for line in records)


def bench_rows(cut: bool) -> str:
    """Returns a file of bench's rows as from a GPU run, with the last line whole or cut."""
    report = json.loads((ROOT / "docs" / "benchmarks" / "cpu.json").read_text())
    rows = [row for row in report["rows"] if row["op"] == "bias_gelu" and row["part"] == "main"]
    header = {name: report[name] for name in ("schema", "command", "date", "versions", "machine")}
    header |= {"build": report["build"], "method": report["method"], "load_before": 0.0}
    header |= {"notes": [], "cases": 9, "commit": None}
    header["options"] = {"device": "cuda", "quick": False, "large": True, "threads": 8}
    header["options"] |= {"ops": ["bias_gelu"], "frameworks": ["torch", "jax"]}
    header["machine"]["gpu"] = "NVIDIA H200"
    text = lines(
        {"header": header},
        *(
            {"case": i, "op": "bias_gelu", "seconds": 1.0, "row": row}
            for i, row in enumerate(rows[:5])
        ),
    )
    return text[:-20] if cut else text


def test_stages_become_one_record_that_the_docs_quote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cpu.json", "cubin.json"):
        (tmp_path / name).write_text((ROOT / "docs" / "benchmarks" / name).read_text())
    monkeypatch.setattr(records, "BENCHMARKS", tmp_path)
    assert "not measured yet" in speed_of("bias_gelu")
    assert "No stage" in gpu_records()

    kernels = lines(DEVICE, ROW, ROW | {"kind": "backward", "error": "launch failed"})
    speed = {"kernel_speed.jsonl": kernels + '{"record": "r', "bench-large.jsonl": bench_rows(True)}
    path = record(archive(tmp_path, "speed", speed), tmp_path)
    failed = {"step": "races", "word": "FAILED", "seconds": 2.0, "why": "exit status 1"}
    (tmp_path / "parity").mkdir()
    table = {"table.txt": "hashes", "table.jsonl": lines({"header": {"command": "parity table"}})}
    truth = archive(tmp_path, "truth", table, results=[failed])
    assert record(truth, tmp_path, tmp_path / "parity") == path
    assert (tmp_path / "parity" / "nvidia-h200.txt").read_text() == "hashes"
    assert path.name == "nvidia-h200.json"
    kept = json.loads(path.read_text())
    assert sorted(kept["stages"]) == ["speed", "truth"]
    assert kept["bench"]["bench-large"]["commit"] == "0123456789ab"
    assert not kept["bench"]["bench-large"]["complete"]
    assert len(kept["bench"]["bench-large"]["rows"]) == 4  # the fifth was cut

    text = speed_of("bias_gelu")
    assert "not measured yet" not in text
    assert "| forward tanh | bfloat16 | 65,536 × 4,096 | 2000.0 | 4000 | 93 % |" in text
    assert "launch failed" in text
    assert "NVIDIA H200" in text
    assert "NVIDIA H200" not in speed_of("softmax")
    assert "races" in gpu_records()


def test_what_says_nothing_of_a_gpu_is_refused(tmp_path: Path) -> None:
    rehearsal = archive(tmp_path, "truth", {}, rehearsal=True)
    with pytest.raises(ValueError, match="rehearsal"):
        record(rehearsal, tmp_path)
    other = tmp_path / "other.tar.gz"
    with tarfile.open(other, "w:gz"):
        pass
    with pytest.raises(ValueError, match=r"no stage\.json"):
        record(other, tmp_path)
    assert not list(tmp_path.glob("*.json"))


def test_only_what_was_built_from_these_sources_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libraries, "PREBUILT", tmp_path)
    assert "nothing prebuilt" in libraries.place_prebuilt()
    (tmp_path / libraries.STAMP).write_text("another\n")
    assert "other sources" in libraries.place_prebuilt()
    (tmp_path / libraries.STAMP).write_text(libraries.digest_of_sources() + "\n")
    assert libraries.module_name() in libraries.place_prebuilt()

    tree = tmp_path / "tree"
    (tree / "bridge").mkdir(parents=True)
    monkeypatch.setattr(libraries, "PROGRAMS", tree / "programs")
    names = (libraries.module_name(), libraries.CUDA_LIBRARY, *libraries.PROGRAM_NAMES)
    for name in names:
        (tmp_path / name).write_text(name)
    digest = libraries.digest_of_sources()
    monkeypatch.setattr(libraries, "digest_of_sources", lambda: digest)
    monkeypatch.setattr(libraries, "ROOT", tree)
    assert libraries.place_prebuilt() == ""
    assert sorted(path.name for path in (tree / "bridge").iterdir()) == sorted(names[:2])
    assert sorted(path.name for path in (tree / "programs").iterdir()) == sorted(names[2:])
