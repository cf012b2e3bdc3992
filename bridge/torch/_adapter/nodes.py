"""Nodes of torch's graph in C++, compiled against the headers of the installed torch.

`torch.autograd.Function` takes 10 to 20 microseconds of a forward and a backward pass; our own node
takes as long as torch's nodes. Through this module kernels also read operands and get memory for
results (cpp/bindings/torch/function_table.h), faster than through DLPack and torch's Python code.

C++ code against torch fits one version only, so this module (cpp/bindings/torch/nodes.cpp) is not
part of the build: the first call that autograd records, or that a compiled graph makes, has it
compiled in the background, as programs of declared ops are. Until then, and if compilation fails,
`torch.autograd.Function` records calls, with the same numbers.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bridge import _native
from bridge.generated.cache import (
    CompileError,
    cached,
    check,
    forget,
    headers,
    log,
    run,
    version_of,
)
from bridge.generated.compiler import find_compiler
from bridge.generated.requests import in_background

_NAME = "bridge_nodes"
_FLAGS = ("-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-w")
# `-z now` reports a symbol missing from torch when the module is loaded, not when it is called.
_LIBRARIES = ("-lc10", "-ltorch_cpu", "-ltorch_python", "-Wl,-z,now")
_INCLUDED = ("bindings/calls/operand.h", "include/bridge/bridge.h")
# The most operands and wanted results of a call: a node has one bit for each.
MOST_VALUES = 64
_TRIAL = Path(__file__).with_name("nodes_trial.py")


class _Nodes:
    """The module as a request to compile, made once: see `bridge.generated.requests`."""

    key = platform = _NAME

    def __init__(self) -> None:
        self.recorder: Callable[..., Any] | None = None
        self.error: Exception | None = None

    def compile(self, again: bool = False) -> None:
        """Compiles the module, or finds it in the cache, and loads it.

        Args:
          again: try even if compilation failed within the last day, in any process.

        Raises:
          CompileError: compilation fails, or the compiled module does not work.
        """
        try:
            self.load(_module(again))
        except Exception as error:
            self.error = error
            raise

    def load(self, path: Path) -> None:
        loader = importlib.machinery.ExtensionFileLoader(_NAME, str(path))
        spec = importlib.util.spec_from_loader(_NAME, loader)
        assert spec is not None
        try:
            module: Any = importlib.util.module_from_spec(spec)
        except ImportError as error:
            forget(path)
            raise CompileError(f"{path} cannot be loaded: {error}") from error
        _native.use_function_table(module.function_table)
        self.recorder = module.recorder  # last: from now on calls use it
        log.debug("loaded nodes of torch's graph from %s", path)

    def lost(self, error: Exception, _: bool) -> None:
        """Logs at level info: a lost gain of microseconds is not worth a warning."""
        log.info("autograd records calls in Python: %s", error)


def _module(again: bool, is_sought: bool = False) -> Path:
    """Returns the compiled module's path; with `is_sought`, only if the cache has it."""
    source = headers() / "bindings" / "torch" / "nodes.cpp"
    command = find_compiler()
    folder = Path(torch.__file__).parent
    paths = [folder / "include", folder / "include" / "torch" / "csrc" / "api" / "include"]
    paths += [Path(sysconfig.get_paths()["include"]), headers(), headers() / "include"]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    options = [*_FLAGS, abi, *(f"-I{path}" for path in paths)]
    linked = [f"-L{folder / 'lib'}", *_LIBRARIES]

    def make(work: Path) -> Path:
        made = work / f"{_NAME}.so"
        run([*command, *options], source, made, linked)
        if not sys.executable:
            raise CompileError("there is no sys.executable to try nodes of torch's graph with")
        # -P keeps the folder of the trial script off the import path.
        check([sys.executable, "-P", str(_TRIAL), _NAME, str(made), *sys.path])
        return made

    versions = torch.__version__, str(torch.version.git_version), sys.version
    included = [headers() / name for name in _INCLUDED]
    files = *sorted(source.parent.glob("*.[ch]*")), *included, _TRIAL
    ours = [file.read_text() for file in files]
    parts = *ours, version_of(tuple(command)), *command, *options, *linked, *versions
    return cached(parts, ".so", None if is_sought else make, again, "nodes of torch's graph")


_nodes = _Nodes()
_is_asked = False


def _ask_again() -> None:
    """In a forked process, asks again: the background thread of the parent does not exist."""
    global _is_asked
    _is_asked = False


os.register_at_fork(after_in_child=_ask_again)


def recorder() -> Callable[..., Any] | None:
    """Returns the module's `recorder`, or None until it is loaded; the first call has it compiled.

    recorder(name, kept, wanted, kernel, otherwise, likes, only_step, pull) returns a function
    `record`; record(*operands) returns the wanted results of a call, with a node in torch's graph:

    - `kernel`, a `_native.Kernel`, computes the results; `otherwise(operands)` does for calls that
      the kernel refuses;
    - `wanted` has the indices of the returned results: a tensor, or a tuple of several;
    - `kept` has the indices of the residuals in (*operands, *results);
    - `likes(operands)` gives the shapes that `pull` needs; None if it needs none;
    - `only_step(wanted, given)` is asked once for each pair: the operands that want cotangents, and
      the results that are given cotangents. It returns the kernel that computes them, as
      `Plan.only_step` does, or None; for None,
    - `pull(kept, cotangents, wanted, likes)` computes them at every call; cotangents may be None.
    """
    global _is_asked
    if not _is_asked and _nodes.recorder is None:
        _is_asked = True
        in_background(_nodes)
    return _nodes.recorder


def state() -> str:
    """Describes, for people, how calls are recorded now."""
    if _nodes.recorder is not None:
        return "C++"
    return f"Python ({_nodes.error})" if _nodes.error else "Python"


def prospect() -> str:
    """Describes, for people, how this process will record calls; compiles nothing."""
    if _nodes.recorder is None and not _nodes.error:
        if os.environ.get("BRIDGE_COMPILE") == "0":
            return "Python (BRIDGE_COMPILE is 0)"
        try:
            _nodes.load(_module(again=False, is_sought=True))
        except CompileError as error:
            return f"Python ({error})"
    return state()


def load() -> None:
    """Compiles the module now, whatever BRIDGE_COMPILE says, even after an earlier failure.

    Raises:
      CompileError: compilation fails.
    """
    if _nodes.recorder is None:
        _nodes.compile(again=True)
