#!/usr/bin/env python3
"""Plants faults in a copy of the sources, one at a time, and asks whether the suite sees them.

A fault is an edit of one place, which must be found exactly once: when the code moves, this script
says so. Exit status 1 if a fault survives or its place is gone. While one fault is tested, the next
is compiled.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from planted_faults import FAULTS, Fault

ROOT = Path(__file__).resolve().parent.parent
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
UNSEEN = "all tests passed"


def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, text=True, capture_output=True, **options)  # type: ignore[call-overload]


def copy_if_changed(source: str, target: str) -> None:
    """Copies a file, with the present time where it differs and untouched where it does not.

    A copied time would be older than an object that was compiled with a fault in the file.
    """
    if not Path(target).exists() or Path(source).read_bytes() != Path(target).read_bytes():
        shutil.copyfile(source, target)


def copy_sources(tree: Path, folders: tuple[str, ...]) -> None:
    for folder in folders:
        shutil.copytree(
            ROOT / folder,
            tree / folder,
            dirs_exist_ok=True,
            copy_function=copy_if_changed,
            ignore=shutil.ignore_patterns("*.so", "*.new", "__pycache__"),
        )
    for file in ("CMakeLists.txt", "pyproject.toml"):
        copy_if_changed(str(ROOT / file), str(tree / file))


def configure(tree: Path) -> None:
    command = ["cmake", "-S", str(tree), "-B", str(tree / "build"), "-G", "Ninja"]
    command += ["-DBRIDGE_CUDA=OFF", f"-DPython_EXECUTABLE={sys.executable}"]
    result = run([*command, "-DCMAKE_BUILD_TYPE=Release"])
    if result.returncode != 0:
        sys.exit(result.stdout + result.stderr)


def build(tree: Path, module: Path) -> Path:
    """Makes the native module and moves it to `module`."""
    result = run(["cmake", "--build", str(tree / "build"), "--target", "_native"])
    if result.returncode != 0:
        raise RuntimeError(f"the faulty tree does not compile:\n{result.stdout[-3000:]}")
    shutil.copy2(tree / "build" / f"_native{SUFFIX}", module)
    return module


def planted(text: str, fault: Fault) -> str | None:
    """The text with the fault in it; None if its place is gone."""
    return text.replace(fault.original, fault.planted) if text.count(fault.original) == 1 else None


class Trees:
    """The sources that are compiled, and the package that is tested meanwhile."""

    def __init__(self, root: Path) -> None:
        self.sources, self.package, self.modules = (
            root / name for name in ("sources", "package", "modules")
        )
        for folder in (self.sources, self.package, self.modules):
            folder.mkdir(parents=True, exist_ok=True)
        copy_sources(self.sources, ("cpp", "cmake"))
        copy_sources(self.package, ("bridge", "tests", "docs"))
        configure(self.sources)
        self.sound = build(self.sources, self.modules / "sound")

    def compile(self, number: int, fault: Fault) -> Path | None:
        """The module with a fault in it (the sound one if that is in Python)."""
        path = ROOT / fault.file if fault.file.endswith(".py") else self.sources / fault.file
        sound = path.read_text()
        faulty = planted(sound, fault)
        if faulty is None or fault.file.endswith(".py"):
            return None if faulty is None else self.sound
        path.write_text(faulty)
        try:
            return build(self.sources, self.modules / str(number))
        finally:
            path.write_text(sound)

    def test(self, module: Path, tests: list[str], fault: Fault | None = None) -> str:
        """The first test that fails, or UNSEEN."""
        shutil.copy2(module, self.package / "bridge" / f"_native{SUFFIX}")
        # Ahead of an editable install, whose finder would otherwise bring in the sound package.
        environment = {**os.environ, "PYTHONPATH": str(self.package)}
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        command = [
            sys.executable,
            "-m",
            "tests.run_from_tree",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
        ]
        path = self.package / fault.file if fault is not None else None
        in_python = path is not None and path.suffix == ".py"
        sound = path.read_text() if in_python else ""
        try:
            if in_python:
                path.write_text(planted(sound, fault))
            result = run([*command, *tests], cwd=self.package, env=environment)
        finally:
            if in_python:
                path.write_text(sound)
        if result.returncode not in (0, 1):
            sys.exit(f"pytest did not run:\n{result.stdout[-2000:]}{result.stderr[-2000:]}")
        lines = [line for line in result.stdout.splitlines() if line.startswith("FAILED")]
        return UNSEEN if result.returncode == 0 else lines[0].removeprefix("FAILED ")[:90]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="plant only faults whose name contains this")
    parser.add_argument(
        "--sample", type=int, metavar="N", help="plant so many of them, others for each commit"
    )
    options = parser.parse_args()
    faults = [fault for fault in FAULTS if options.only in fault.name]
    if options.sample is not None and options.sample < len(faults):
        head = run(["git", "-C", str(ROOT), "rev-parse", "HEAD"]).stdout
        chosen = random.Random(head).sample(range(len(faults)), options.sample)
        faults = [faults[i] for i in sorted(chosen)]
    begin = time.monotonic()
    trees = Trees(ROOT / "build" / "faults")
    print(f"compiled without a fault ({time.monotonic() - begin:.0f} s)", flush=True)
    survived = 0
    with ThreadPoolExecutor(1) as compiler:
        modules = [compiler.submit(trees.compile, *numbered) for numbered in enumerate(faults)]
        seen = trees.test(trees.sound, sorted({fault.tests for fault in faults}))
        if seen != UNSEEN:
            compiler.shutdown(cancel_futures=True)
            sys.exit(f"the suite fails without any fault: {seen}")
        print(f"{UNSEEN} without a fault ({time.monotonic() - begin:.0f} s)", flush=True)
        for fault, module in zip(faults, modules, strict=True):
            faulty = module.result()
            if faulty is None:
                print(f"{fault.name}: its place in {fault.file} is gone")
                survived += 1
                continue
            seen = trees.test(faulty, [fault.tests, "-k", fault.keyword], fault)
            survived += seen == UNSEEN
            verdict = "SURVIVED" if seen == UNSEEN else "seen"
            print(f"{fault.name}: {verdict} ({seen})", flush=True)
    print(f"{len(faults)} faults, {survived} survived ({time.monotonic() - begin:.0f} s)")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
