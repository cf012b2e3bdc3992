"""scripts/check_versions.py tests both ends of the version ranges in pyproject.toml."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from scripts import check_versions, environment
from scripts.check_versions import PAIRS, REQUIREMENTS, SAMPLED, parsed

ROOT = Path(__file__).resolve().parent.parent


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)))


def named(pair: str) -> dict[str, tuple[int, ...]]:
    lines = (REQUIREMENTS / f"{pair}.txt").read_text().splitlines()
    found = [line.partition("#")[0].strip().split("==") for line in lines]
    return {words[0]: numbers(words[1]) for words in found if len(words) == 2}


def test_the_files_name_the_ends_of_the_ranges() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [text for extra in project["optional-dependencies"].values() for text in extra]
    for package in ("torch", "jax"):
        text = next(each for each in wanted if re.match(rf"{package}[<>=]", each))
        least, above = (numbers(bound) for bound in re.findall(r"[<>]=?([\d.]+)", text))
        oldest, newest = named("oldest")[package], named("newest")[package]
        assert oldest[: len(least)] == least
        assert not any(oldest[len(least) :])
        assert newest < above
        assert newest[:2] == (above[0], above[1] - 1)
    flax = next(each for each in wanted if each.startswith("flax"))
    assert named("oldest")["flax"] == numbers(flax)
    least_python = numbers(project["requires-python"])
    assert numbers(PAIRS["oldest"]) == least_python
    assert list(PAIRS) == ["oldest", "newest"]


def test_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    chosen, of_pytest = parsed([])
    assert chosen.pairs == ["oldest", "newest"]
    assert of_pytest == list(SAMPLED)
    chosen, of_pytest = parsed(["oldest", "--torch", "2.12.0", "--", "tests/cli", "-x"])
    assert (chosen.pairs, chosen.torch) == (["oldest"], "2.12.0")
    assert of_pytest == ["tests/cli", "-x"]
    for wrong, words in ((["new"], "new: expected oldest, newest"), (["--torch", "2"], "name the")):
        with pytest.raises(SystemExit):
            parsed(wrong)
        assert words in capsys.readouterr().err


@pytest.mark.parametrize("fails", [None, "oldest", "newest"])
def test_a_pair_that_fails_does_not_keep_the_other_from_running(
    fails: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = []

    def test(pair: check_versions.Pair, python: Path, arguments: list[str]) -> bool:
        run.append((pair.name, pair.torch))
        return pair.name != fails

    monkeypatch.setattr(check_versions.Pair, "make", lambda pair: Path(sys.executable))
    monkeypatch.setattr(check_versions.Pair, "test", test)
    assert check_versions.main([]) == (0 if fails is None else 1)
    assert [name for name, _ in run] == ["oldest", "newest"]
    assert [numbers(torch) for _, torch in run] == [named(name)["torch"] for name in PAIRS]
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"versions: {fails} FAILED" if fails else last == "versions: all passed"


def test_an_interpreter_is_found_or_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    here = ".".join(map(str, sys.version_info[:2]))
    assert environment.find_python(here)
    monkeypatch.setenv("PYENV_ROOT", "/nowhere")
    with pytest.raises(SystemExit, match=r"found no Python 3.99: .* name it in BRIDGE_PYTHON399"):
        environment.find_python("3.99")
