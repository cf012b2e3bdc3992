"""Names by which a traced graph calls programs; some names carry the program itself.

A traced graph holds a string for each program. Graphs outlive their process: in an exported
module, a pickle, a cache on disk. So a name means one program in all processes:

- `f@process:<uuid>` is a program of this process only;
- `f@sha256:<digest>:<number>` is any program with this StableHLO: a cached graph finds the one of
  the process that loads it;
- `f@jax:<uuid>:<data>` carries the program with its first derivative, as `jax.export` serialises
  them.

Programs with the same StableHLO may have different derivatives (`jax.custom_vjp`). So a digest is
used only in graphs that run the program without differentiating it, below autograd. It is numbered,
because torch merges equal calls, and then both results would get the same derivative.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import threading
import uuid
import warnings
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch
from jax import export
from torch import Tensor

from bridge import _native
from bridge._private.torch import is_exporting, proxy_mode, tracing_state
from bridge.torch._from_jax.program import Mask, Program

_programs: dict[str, Program] = {}
_lock = threading.Lock()
_PROCESS, _DIGEST, _CARRIED = "process", "sha256", "jax"


def name_of(program: Program, inputs: Sequence[Tensor]) -> str:
    """Returns the name that the dispatcher uses for a program with all of its derivatives."""
    kind = _kind_for_the_graph(program)
    return _name(program, _PROCESS if kind == _DIGEST else kind, inputs)


def name_to_run(program: Program, inputs: Sequence[Tensor]) -> str:
    """Returns the name for a graph that runs the program and never differentiates it."""
    return _name(program, _kind_for_the_graph(program), inputs)


def _kind_for_the_graph(program: Program) -> str:
    if is_exporting():  # its proxies are not among the modes while it traces above autograd
        return _CARRIED
    if proxy_mode() is None and tracing_state() is None:
        return _PROCESS  # no graph stores the name
    # If a graph that carries a program is not in torch.compile's cache, it is traced again. If it
    # is in the cache, nothing is traced, so programs derived from it must be carried as well.
    if torch.compiler.is_compiling() and not program.origin.is_carried:
        return _DIGEST
    return _CARRIED


def program_of(name: str) -> Program:
    """Returns the program of that name.

    Raises:
      RuntimeError: the program belongs to another process and the graph does not carry it, or this
        version of JAX cannot read it.
    """
    program = _programs.get(name)
    if program is None:
        if _kind(name) != _CARRIED:
            raise RuntimeError(
                f"from_jax: the graph calls the JAX function {_function(name)}, which exists only "
                "in the process that traced the graph; trace the graph again in this process, or "
                "use torch.export, torch.jit.trace or make_fx, whose graphs carry a function that "
                "jax.export can serialise"
            )
        program = _register(name, _Carried(name))
    return program


def _kind(name: str) -> str:
    return name.rpartition("@")[2].partition(":")[0]


def _function(name: str) -> str:
    return name.rpartition("@")[0]


def _register(name: str, program: Program) -> Program:
    with _lock:
        return _programs.setdefault(name, program)


def _name(program: Program, kind: str, inputs: Sequence[Tensor]) -> str:
    platform = inputs[0].device.type if inputs else _default_platform()
    name = program.names.get((kind, platform))
    if name is None:
        name = _new_name(program, kind, platform)
        name = program.names.setdefault((kind, platform), name)
        _register(name, program)
    return name


def _default_platform() -> str:
    platform = jax.default_backend()
    return "cuda" if platform == "gpu" else platform


def _new_name(program: Program, kind: str, platform: str) -> str:
    unique = uuid.uuid4().hex
    if kind != _PROCESS:
        try:
            exported = _export(program, platform)
            if kind == _DIGEST:
                content = hashlib.sha256(exported.mlir_module_serialized)
                content.update(repr((exported.in_avals, exported.out_avals, platform)).encode())
                same = f"{program.name}@{_DIGEST}:{content.hexdigest()}"
                return next(n for i in itertools.count() if (n := f"{same}:{i}") not in _programs)
            packed = _packed(program, exported)
            program.origin.is_carried = True
            return f"{program.name}@{_CARRIED}:{unique}:{packed}"
        except Exception as error:  # JAX raises many types; in this process the program still runs
            if kind == _CARRIED:
                warnings.warn(
                    f"from_jax: the graph cannot carry {program.name} into another process, where "
                    f"calling it will raise: jax.export cannot serialise it: {_first_line(error)}",
                    UserWarning,
                    stacklevel=2,
                )
    return f"{program.name}@{_PROCESS}:{unique}"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def _export(program: Program, platform: str) -> Any:
    # The custom calls of bridge contain their whole program; importing bridge.jax registers them.
    own = [export.DisabledSafetyCheck.custom_call(target) for target in _native.ffi_handlers()]
    with program.settings.restored():
        return export.export(program.run, platforms=[platform], disabled_checks=own)(*program.avals)


def _packed(program: Program, exported: Any) -> str:
    """Returns the text that `_Carried` reads: x64, and the program with its derivative, if any."""
    with program.settings.restored():
        try:
            data = exported.serialize(vjp_order=1 if program.has_derivatives else 0)
            reason = None
        except Exception as error:  # no derivative: a while loop has none in reverse mode
            data = exported.serialize(vjp_order=0)
            reason = _first_line(error)
    head = json.dumps([program.settings.x64, reason]).encode()
    return base64.b64encode(zlib.compress(head + b"\n" + bytes(data))).decode()


class _Carried(Program):
    """A program from a graph of another process, with the derivative that was stored with it."""

    def __init__(self, name: str) -> None:
        import bridge.jax  # noqa: F401  (registers custom calls that the program may contain)

        function = _function(name)
        head, _, data = zlib.decompress(base64.b64decode(name.rpartition(":")[2])).partition(b"\n")
        x64, self._without = json.loads(head)
        try:
            exported = export.deserialize(bytearray(data))
        except Exception as error:
            raise RuntimeError(
                f"from_jax: the graph carries the JAX function {function} in a form that this "
                f"version of JAX, {jax.__version__}, cannot read: {_first_line(error)}"
            ) from error
        avals = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in exported.in_avals]
        with jax.enable_x64(x64):
            super().__init__(exported.call, avals, (True,) * len(avals), function)
        self.is_carried = True
        self.names = dict.fromkeys([(_CARRIED, platform) for platform in exported.platforms], name)

    def _jvp(self, given: Mask) -> Program:
        raise NotImplementedError("jax.export keeps no forward mode")  # JAX itself fails only later

    def made(self, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except Exception as error:  # each transformation of JAX has its own type
            has = (
                f"no derivative ({self._without})" if self._without else "one derivative backwards"
            )
            raise NotImplementedError(
                f"from_jax: the graph carries the JAX function {self.name} from another process, "
                f"with {has} and no more, but this call needs another: {_first_line(error)}; "
                "differentiate or batch it before the export"
            ) from error
