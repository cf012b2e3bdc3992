#!/usr/bin/env python3
"""Runs the sampled suite under the oldest and the newest versions of the frameworks.

Each pair of versions has its own environment in build/versions/, with the packages of
requirements/oldest.txt or newest.txt, and bridge compiled in it. No test is left out. The exit
status is 1 if a suite failed, and 2 if an environment cannot be made.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from scripts.environment import environment, named_torch  # noqa: E402

FOLDER = ROOT / "build" / "versions"
REQUIREMENTS = ROOT / "requirements"
# The Python version of each pair, by name.
PAIRS = {"oldest": "3.11", "newest": "3.12"}
SAMPLED = ("-n", "logical", "--maxprocesses", "4", "--dist", "worksteal", "--sample", "2")


@dataclass(frozen=True)
class Pair:
    """Versions of torch and JAX that are tested together."""

    name: str
    torch: str

    @property
    def folder(self) -> Path:
        return FOLDER / self.name

    def make(self) -> Path:
        """Makes the environment, compiles bridge in it, and returns its interpreter."""
        files = [REQUIREMENTS / f"{name}.txt" for name in (self.name, "build", "test")]
        python = environment(self.folder / "venv", PAIRS[self.name], self.torch, files)
        print(f"{self.name}: compiling bridge", flush=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--no-deps"]
        # Without dependencies: they include a framework of gigabytes, and only its data is needed.
        subprocess.run([*pip, "-r", str(REQUIREMENTS / "demo.txt")], check=True)
        install = [*pip, "--no-build-isolation", "--config-settings"]
        install += [f"build-dir={self.folder / 'build'}", "--editable", str(ROOT)]
        subprocess.run(install, check=True, cwd=ROOT, env=self.variables())
        nodes = "from bridge.torch._adapter import nodes; nodes.load()"
        subprocess.run([str(python), "-c", nodes], check=False, cwd=ROOT, env=self.variables())
        return python

    def variables(self) -> dict[str, str]:
        """Returns the environment variables for compiling and testing this pair."""
        variables = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        path = f"{self.folder / 'venv' / 'bin'}{os.pathsep}{variables.get('PATH', '')}"
        return variables | {"PATH": path, "BRIDGE_CACHE_DIR": str(self.folder / "compiled")}

    def test(self, python: Path, arguments: list[str]) -> bool:
        """Runs the suite, or the part that pytest's arguments name."""
        # The cache of test results belongs to the main environment, and must not be overwritten.
        run = [str(python), "-m", "pytest", "-p", "no:cacheprovider", *arguments]
        return subprocess.run(run, cwd=ROOT, env=self.variables()).returncode == 0


def parsed(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pairs", nargs="*", metavar="PAIR", help="oldest, newest; both if none")
    parser.add_argument(
        "--torch",
        metavar="VERSION",
        help="a torch version for a package index that lacks the file's version",
    )
    parser.add_argument("--make", action="store_true", help="make the environments, run nothing")
    end = arguments.index("--") if "--" in arguments else len(arguments)
    chosen = parser.parse_args(arguments[:end])
    if unknown := [pair for pair in chosen.pairs if pair not in PAIRS]:
        parser.error(f"{unknown[0]}: expected {', '.join(PAIRS)}")
    chosen.pairs = chosen.pairs or [*PAIRS]
    if chosen.torch and len(chosen.pairs) != 1:
        parser.error("--torch: name the pair that it belongs to, oldest or newest")
    return chosen, arguments[end + 1 :] or [*SAMPLED]


def main(arguments: list[str]) -> int:
    """Runs the command line; arguments after `--` replace the sampled suite's pytest arguments."""
    chosen, of_pytest = parsed(arguments)
    failed = []
    for name in chosen.pairs:
        pair = Pair(name, chosen.torch or named_torch(REQUIREMENTS / f"{name}.txt"))
        try:
            python = pair.make()
        except subprocess.CalledProcessError as error:
            print(f"{name}: cannot be made: {error}", file=sys.stderr)
            return 2
        if not chosen.make and not pair.test(python, of_pytest):
            failed.append(name)
    print(f"versions: {', '.join(failed)} FAILED" if failed else "versions: all passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
