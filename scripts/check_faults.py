#!/usr/bin/env python3
"""Plants faults in copies of the sources, one at a time, and checks that a test detects each.

A fault is an edit of one place, whose text must occur exactly once in its file: when the code
moves, this script reports it. The exit status is 1 if no test detects a fault, its place is gone,
or its test fails without the fault too.

Nothing is built from scratch: only objects of the installed build that contain the fault are
compiled again, and a fault in Python needs no compilation.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from planted_faults import FAULTS, Fault

ROOT = Path(__file__).resolve().parent.parent
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
# The native module of a build; Python 3.12 and newer have the stable ABI's.
MODULES = (f"_native{SUFFIX}", "_native.abi3.so")
UNSEEN = "all tests passed"


def run(command: list[str] | str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, text=True, capture_output=True, **options)  # type: ignore[call-overload]


def planted(text: str, fault: Fault) -> str | None:
    """Returns the text with the fault in it; None if its place is gone."""
    return text.replace(fault.original, fault.planted) if text.count(fault.original) == 1 else None


class Build:
    """A finished build without a fault: its commands, and the sources of each object."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.module = next(folder / name for name in MODULES if (folder / name).exists())
        self.commands = self._ninja("commands", "_native").splitlines()
        self.sources: dict[str, set[Path]] = {}
        for entry in self._ninja("deps").strip().split("\n\n"):
            output, *sources = entry.splitlines()
            self.sources[output.split(":")[0]] = {
                (folder / source.strip()).resolve() for source in sources
            }

    def _ninja(self, tool: str, *arguments: str) -> str:
        return run(["ninja", "-C", str(self.folder), "--quiet", "-t", tool, *arguments]).stdout

    def again(self, changed: Path, copy: Path, objects: Path) -> Path:
        """Builds the module from a copy of the folder cpp in which one file has changed.

        Args:
          changed: the file's path in the original folder.
          copy: the folder that has the copy of cpp.
          objects: the folder for new objects.
        """
        made: dict[str, str] = {}  # new objects by their names in the commands
        is_found = False

        def translated(command: str) -> str:
            words = [made.get(word, word) for word in command.split(" ")]
            # A fault may leave a parameter unused.
            words = [word for word in words if not word.startswith("-Werror")]
            return " ".join(words).replace(f"{ROOT}/cpp", f"{copy}/cpp")

        for command in self.commands:
            output = re.search(r"(?: -o|\bar qc) (\S+)", command)
            if output is None:
                continue
            name = output[1]
            is_found = is_found or changed in self.sources.get(name, ())
            # Many objects, whose faults other objects or tests show.
            if "/bridge_ahead_of_time_" in name:
                continue
            if changed not in self.sources.get(name, ()) and not made.keys() & command.split(" "):
                continue
            target = objects / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            made |= {name: str(target), f"{name}.d": f"{target}.d"}
            made[str(self.folder / name)] = str(target)
            result = run(translated(command), shell=True, cwd=self.folder)
            if result.returncode != 0:
                raise RuntimeError(f"a faulty source does not compile:\n{result.stderr[-3000:]}")
        if not is_found:
            raise RuntimeError(f"no object of {self.folder} is made of {changed}")
        if not made:
            return self.module
        return objects / self.module.name


class Tree:
    """A copy of the sources and of the package, in which faults are tried one at a time."""

    def __init__(self, folder: Path, build: Build) -> None:
        self.folder, self.build = folder, build
        shutil.rmtree(folder, ignore_errors=True)
        unwanted = shutil.ignore_patterns("*.so", "*.new", "__pycache__")
        for part in ("cmake", "cpp", "bridge", "tests", "docs", "examples"):
            shutil.copytree(ROOT / part, folder / part, ignore=unwanted)
        for file in ("CMakeLists.txt", "pyproject.toml"):
            shutil.copyfile(ROOT / file, folder / file)

    def fails(self, fault: Fault) -> str | None:
        """Returns the first test that fails with a fault, or UNSEEN; None if its place is gone."""
        path = self.folder / fault.file
        sound = path.read_text()
        faulty = planted(sound, fault)
        if faulty is None:
            return None
        path.write_text(faulty)
        try:
            module = self.build.module
            # The tests compile the other sources.
            in_module = not fault.file.startswith("cpp/bindings/torch/")
            if path.suffix not in (".py", ".cu", ".cuh") and in_module:
                changed = ROOT / fault.file
                module = self.build.again(changed, self.folder, self.folder / "objects")
            return self.test(module, [fault.tests, "-k", fault.keyword])
        finally:
            path.write_text(sound)

    def test(self, module: Path, tests: list[str]) -> str:
        """Returns the first test that fails, or UNSEEN."""
        shutil.copy2(module, self.folder / "bridge" / f"_native{SUFFIX}")
        # It comes before an editable install, whose finder would import the original package.
        environment = {**os.environ, "PYTHONPATH": str(self.folder)}
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        environment["BRIDGE_CACHE_DIR"] = str(ROOT / "build" / "compiled")
        command = [sys.executable, "-m", "tests.run_from_tree", "-x", "-q"]
        command += ["-p", "no:cacheprovider", *tests]
        result = run(command, cwd=self.folder, env=environment)
        if "ERROR collecting" in result.stdout:  # an import fails
            return tests[0]
        if result.returncode not in (0, 1):
            raise RuntimeError(
                f"pytest did not run:\n{result.stdout[-2000:]}{result.stderr[-2000:]}"
            )
        failed = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", result.stdout, re.MULTILINE)
        return UNSEEN if result.returncode == 0 or failed is None else failed[1]


def find_build() -> Path:
    """Returns the folder in which the installed module was built."""
    found = [path for name in MODULES for path in ROOT.glob(f"build/cp*-*/{name}")]
    if not found:
        sys.exit("check_faults: nothing is built yet (make)")
    return found[0].parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="plant only faults whose name contains this")
    parser.add_argument(
        "--sample", type=int, metavar="N", help="plant N of them, different ones for each commit"
    )
    parser.add_argument("--build", type=Path, help="a build folder of the present sources")
    options = parser.parse_args()
    faults = [fault for fault in FAULTS if options.only in fault.name]
    if options.sample is not None and options.sample < len(faults):
        head = run(["git", "-C", str(ROOT), "rev-parse", "HEAD"]).stdout.strip()
        print(f"{options.sample} of {len(faults)} faults, drawn for commit {head}")
        faults = random.Random(head).sample(faults, options.sample)

    begin = time.monotonic()
    build = Build((options.build or find_build()).resolve())
    workers = min(os.cpu_count() or 1, 4)
    trees: SimpleQueue[Tree] = SimpleQueue()
    for worker in range(workers):
        trees.put(Tree(ROOT / "build" / "faults" / str(worker), build))

    def attempt(fault: Fault) -> str | None:
        tree = trees.get()
        try:
            return tree.fails(fault)
        finally:
            trees.put(tree)

    survived, seen = 0, set()
    with ThreadPoolExecutor(workers) as pool:
        for fault, test in zip(faults, pool.map(attempt, faults), strict=True):
            if test is None:
                print(f"{fault.name}: its place in {fault.file} is gone")
                survived += 1
            elif test == UNSEEN:
                print(f"{fault.name}: SURVIVED {fault.tests} -k '{fault.keyword}'")
                survived += 1
            else:
                print(f"{fault.name}: seen ({test[:90]})", flush=True)
                seen.add(test)
    if seen:
        without = trees.get().test(build.module, sorted(seen))
        if without != UNSEEN:
            print(f"no fault is needed for this to fail: {without}")
            return 1
    print(f"{len(faults)} faults, {survived} survived ({time.monotonic() - begin:.0f} s)")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
