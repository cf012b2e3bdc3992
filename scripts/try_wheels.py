#!/usr/bin/env python3
"""Installs the wheels of `make wheels` where there is no compiler, and uses them.

Each environment gets its frameworks from a folder of downloaded packages, then the wheel, without a
network and with a path that has Python alone. It runs the code of the README as far as its
frameworks go, scripts/try_package.py, and every STEP-th case of tests/golden on each instruction
set. The times of the installation and of the first result are printed. "sdist" builds the source
archive in an environment that has pip and a C++ compiler, and nothing else. The exit status is 1 if
a wheel failed, which ends it, and 2 if the frameworks of an environment cannot be downloaded.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from scripts.environment import find_python  # noqa: E402

DIST = ROOT / "build" / "wheels" / "dist"
FOLDER = ROOT / "build" / "try-wheels"
REQUIREMENTS = ROOT / "requirements"
STEP = 25
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Prints how long a process takes from its start to the first result.
FIRST = {
    "torch": "import torch, bridge.torch as b; print(b.rms_norm(torch.ones(2, 8)).sum().item())",
    "jax": "import jax.numpy as n, bridge.jax as b; print(b.rms_norm(n.ones((2, 8))).sum().item())",
    "numpy": "import bridge, numpy as n\n@bridge.op\ndef twice(x: bridge.Full): return x + x\n"
    "print(twice(n.ones((2, 8), 'f4')).sum())",
}
NO_COMPILER = """
import shutil
found = [name for name in ("c++", "g++", "clang++", "cmake", "ninja", "nvcc") if shutil.which(name)]
assert not found, found
"""


@dataclass(frozen=True)
class Environment:
    """A Python with some frameworks.

    Attributes:
      versions: the requirements file with the frameworks' versions.
    """

    name: str
    python: str
    frameworks: tuple[str, ...] = ()
    versions: str = "frameworks"

    @property
    def folder(self) -> Path:
        return FOLDER / self.name

    @property
    def interpreter(self) -> Path:
        return self.folder / "bin" / "python"

    def packages(self) -> list[str]:
        """Returns the requirements of the environment besides bridge."""
        lines = (REQUIREMENTS / f"{self.versions}.txt").read_text().splitlines()
        names = re.compile(rf"({'|'.join([*self.frameworks, 'numpy'])}|jaxlib)==")
        wanted = [line.partition("#")[0].strip() for line in lines if names.match(line)]
        if "jax" not in self.frameworks:
            wanted = [line for line in wanted if not line.startswith("jax")]
        return [*wanted, "numpy", "ml_dtypes"]

    def variables(self) -> dict[str, str]:
        """Returns the variables of a process that finds Python and nothing else."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("BRIDGE_", "PYTHON"))}
        kept.pop("CXX", None)
        cache = {"BRIDGE_CACHE_DIR": str(self.folder / "cache"), "HOME": str(self.folder)}
        return kept | cache | {"PATH": str(self.folder / "bin")}

    def run(self, *arguments: str) -> str:
        """Runs Python in the environment; returns its output."""
        result = subprocess.run(
            [str(self.interpreter), *arguments],
            cwd=self.folder,
            env=self.variables(),
            capture_output=True,
            text=True,
            timeout=1800,
        )
        if result.returncode != 0:
            raise SystemExit(f"{self.name}: {arguments[:2]} failed:\n{result.stderr[-3000:]}")
        return result.stdout

    def make(self) -> str | None:
        """Makes the environment with its frameworks, from a folder of packages.

        Returns:
          The reason why the packages cannot be downloaded, or None.
        """
        if (self.folder / "made").exists():
            return None
        shutil.rmtree(self.folder, ignore_errors=True)
        house = FOLDER / f"packages-{self.python}"
        subprocess.run([find_python(self.python), "-m", "venv", str(self.folder)], check=True)
        pip = [str(self.interpreter), "-m", "pip", "--disable-pip-version-check", "--quiet"]
        command = [*pip, "download", "--dest", str(house), *self.packages()]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
            return f"{' '.join(self.packages())}: {lines[0] if lines else done.stderr[-300:]}"
        command = [*pip, "install", "--no-index", f"--find-links={house}", *self.packages()]
        subprocess.run(command, check=True, env=self.variables())
        (self.folder / "made").touch()
        return None

    def install(self) -> float:
        """Installs the wheel; returns the seconds that pip takes."""
        pip = ("-m", "pip", "--disable-pip-version-check", "--quiet")
        self.run(*pip, "uninstall", "--yes", "bridge-ops", "bridge-ops-cuda13")
        begin = time.monotonic()
        self.run(*pip, "install", "--no-index", f"--find-links={DIST}", "bridge-ops")
        return time.monotonic() - begin

    def first_result(self) -> float:
        """Returns the seconds that a process takes to import, and to compute a first result."""
        begin = time.monotonic()
        self.run("-c", FIRST[self.frameworks[0] if self.frameworks else "numpy"])
        return time.monotonic() - begin

    def use(self, step: int) -> None:
        """Runs the README's code and the smoke suite."""
        self.run("-c", NO_COMPILER)
        blocks = BLOCK.findall((ROOT / "README.md").read_text())
        # The second block is JAX's, on the arrays of PyTorch's.
        count = {("torch",): 1, ("torch", "jax"): len(blocks)}.get(self.frameworks, 0)
        self.run("-W", "error", "-c", "\n".join(blocks[:count]))
        tried = self.folder / "tried"
        shutil.rmtree(tried, ignore_errors=True)
        shutil.copytree(ROOT / "tests", tried / "tests", ignore=shutil.ignore_patterns("__pyc*"))
        shutil.copytree(ROOT / "scripts", tried / "scripts")
        print(self.run(str(tried / "scripts" / "try_package.py"), *self.frameworks), end="")
        for framework in self.frameworks:
            code = f"import sys; sys.path.insert(0, {str(tried)!r}); sys.argv[0] = 'golden'\n"
            code += "import runpy; runpy.run_module('tests.golden', run_name='__main__')"
            print(self.run("-c", code, "--check", framework, "--step", str(step)), end="")
        facts = self.run("-m", "bridge", "info")
        print(*(line for line in facts.splitlines() if "records calls" in line or "why" in line))

    def use_cuda(self) -> None:
        """Adds the distribution of CUDA kernels: its library must open without a driver."""
        pip = ("-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--no-index")
        self.run(*pip, f"--find-links={DIST}", "bridge-ops[cuda13]")
        archs = "import bridge; print('CUDA kernels for', *bridge.build_info()['cuda_archs'])"
        print(self.run("-c", archs), end="")


def try_sdist() -> None:
    """Builds the source archive, and the package from it alone, by pip in isolation."""
    folder = FOLDER / "sdist"
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([find_python("3.11"), "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "install", "build"], check=True)
    build = [str(folder / "bin" / "python"), "-m", "build", "--sdist", "--outdir", str(folder)]
    subprocess.run([*build, str(ROOT)], check=True, stdout=subprocess.DEVNULL)
    (archive,) = folder.glob("*.tar.gz")
    begin = time.monotonic()
    options = ["cmake.define.BRIDGE_CUDA=OFF", "cmake.define.BRIDGE_HOT=OFF"]
    settings = [f"--config-settings={option}" for option in options]
    # Folders with a compiler, without tools that a user has installed.
    path = os.environ | {"PATH": "/usr/bin:/bin"}
    subprocess.run([*pip, "install", *settings, str(archive)], check=True, env=path)
    print(f"built {archive.name} and installed it in {time.monotonic() - begin:.0f} s")
    run = [str(folder / "bin" / "python"), "-c", FIRST["numpy"]]
    subprocess.run(run, check=True, cwd=folder)


ENVIRONMENTS = (
    Environment("neither", "3.11"),
    Environment("neither-abi3", "3.12"),
    Environment("torch", "3.11", ("torch",)),
    Environment("jax", "3.12", ("jax",)),
    Environment("oldest", "3.11", ("torch", "jax"), "oldest"),
    Environment("newest", "3.12", ("torch", "jax"), "newest"),
)


def main() -> int:
    """Runs the command line; the first wheel that fails ends it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [*(each.name for each in ENVIRONMENTS), "sdist"]
    parser.add_argument("names", nargs="*", metavar="ENVIRONMENT", help=f"all, or {names}")
    parser.add_argument("--step", type=int, default=STEP, help="of the golden cases")
    chosen = parser.parse_args()
    if unknown := {*chosen.names} - {*names}:
        parser.error(f"{unknown.pop()}: expected {', '.join(names)}")
    if not [*DIST.glob("bridge_ops-*.whl")]:
        parser.error(f"no wheel in {DIST}: run `make wheels` first")
    missing = []
    for each in ENVIRONMENTS:
        if chosen.names and each.name not in chosen.names:
            continue
        print(f"== {each.name}: Python {each.python}, {', '.join(each.frameworks) or 'NumPy'}")
        if (why := each.make()) is not None:
            print(f"not tried, pip cannot download {why}", flush=True)
            missing.append(each.name)
            continue
        installed, first = each.install(), each.first_result()
        print(f"pip install {installed:.1f} s, first result {first:.1f} s later", flush=True)
        each.use(chosen.step)
        if not each.frameworks and [*DIST.glob(f"bridge_ops_cuda13-*{platform.machine()}.whl")]:
            each.use_cuda()
    if not chosen.names or "sdist" in chosen.names:
        try_sdist()
    if missing:
        print(f"wheels: not tried with {', '.join(missing)}; the others passed")
        return 2
    print("wheels: all environments passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
