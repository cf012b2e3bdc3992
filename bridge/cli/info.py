"""`python -m bridge info`: the features of this build and the software and devices it finds.

Users run it when something is missing, so it needs only bridge and its dependencies.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import bridge
from bridge import _cuda_files, _native
from bridge._installed import need
from bridge.cli import machine

# Words of JSON's keys that the text writes in another way.
_SPELLED = {
    "api": "API",
    "archs": "architectures",
    "cuda": "CUDA",
    "ffi": "FFI",
    "isa": "instruction set",
    "isas": "instruction sets",
    "mib": "MiB",
    "xla": "XLA",
}
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(options: argparse.Namespace) -> int:
    sections = collect()
    if options.json:
        print(json.dumps(sections, indent=2))
        return 0
    # If the width is unknown, as in a pipe, lines are not folded.
    width = max(shutil.get_terminal_size((100_000, 24)).columns, 12)
    print(f"bridge {bridge.__version__}")
    for name, section in sections.items():
        print("\n".join(("", name, *_lines(section, width))))
    return 0


def _lines(section: dict[str, Any], width: int) -> Iterator[str]:
    """Yields a line for each fact, folded if it is too wide."""
    names = {key: _spelled(key) for key in section}
    most = max(map(len, names.values()))
    for key, value in section.items():
        line = f"  {names[key]:<{most}}  {_text(value)}"
        yield from textwrap.wrap(line, width, subsequent_indent=" " * 6, break_on_hyphens=False)


def _spelled(key: str) -> str:
    """Returns a key in words; packages and environment variables keep their names."""
    if key.isupper() or key in machine.PACKAGES:
        return key
    return " ".join(_SPELLED.get(word, word) for word in key.split("_"))


def collect() -> dict[str, dict[str, Any]]:
    """Returns every fact by section, in JSON's types."""
    build = bridge.build_info()
    frameworks = {"torch": _torch(), "jax": _jax()}
    usable = [name for name, f in frameworks.items() if f["installed"] and "why_not" not in f]
    return {
        "versions": machine.versions() | {"commit": machine.commit()},
        "build": {
            "compiler": build["compiler"],
            "ffi_api": ".".join(map(str, build["ffi_api"])),
            "cuda": build["cuda"],
            "cuda_archs": build["cuda_archs"],
            "native_module": _native.__file__,
        },
        "processor": _processor(),
        **frameworks,
        "cuda": _cuda(),
        "allocators": _allocators(usable),
        "memory": _memory(),
    }


def _processor() -> dict[str, Any]:
    build, usable = bridge.build_info(), usable_isas()
    forced = os.environ.get("BRIDGE_CPU_ISA")
    facts: dict[str, Any] = {
        "name": machine.processor(),
        "cores": machine.cores(),
        "isas_compiled_in": build["cpu_isas"],
        "isas_usable": usable,
        "isa_in_use": build["cpu_isa"],
        "isa_forced_by_environment": forced,
    }
    if forced and forced not in usable:
        expected = ", ".join(usable)
        facts["isa_in_use"] = None
        facts["why_not"] = f"BRIDGE_CPU_ISA is {forced!r}, expected one of {expected}, or no value"
    return facts


def usable_isas() -> list[str]:
    """Returns the instruction sets compiled in that this processor has, strongest first."""
    current = _native.cpu_isa()
    usable = []
    try:
        for isa in bridge.build_info()["cpu_isas"]:
            try:
                _native.set_cpu_isa(isa)
            except (ValueError, RuntimeError):
                continue
            usable.append(isa)
    finally:
        _native.set_cpu_isa(None)
        if _native.cpu_isa() != current:  # the user had set it; it was not the default
            _native.set_cpu_isa(current)
    return usable


def _why_not(framework: str) -> str | None:
    """Says why a framework cannot be used: a part is missing, or its version is not supported."""
    try:
        need(f"bridge.{framework}", framework)
    except Exception as error:  # the import of an installation that is damaged raises any
        return _one_line(error)
    return None


def _one_line(error: Exception) -> str:
    said = str(error).strip().splitlines() or [""]
    return said[0] if isinstance(error, ImportError) else f"{type(error).__name__}: {said[0]}"


def _torch() -> dict[str, Any]:
    if importlib.util.find_spec("torch") is None:
        return {"installed": False}
    if (why := _why_not("torch")) is not None:
        return {"installed": True, "why_not": why}
    import torch

    facts: dict[str, Any] = {
        "installed": True,
        "threads": torch.get_num_threads(),
        "cuda_build": torch.version.cuda,
        "cuda_available": torch.cuda.is_available(),
    }
    # Import it here: importing bridge.torch takes as long as everything else together.
    try:
        from bridge.torch._adapter import nodes
    except ImportError as error:  # a version that bridge does not support
        facts["why_not"] = str(error)
    else:
        facts["autograd_records_calls_in"] = nodes.prospect()
    if torch.cuda.is_available():
        facts["devices"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return facts


# This variable chooses JAX's other GPU client, which lacks a stream that conversions need.
_OTHER_CLIENT = "XLA_PYTHON_CLIENT_USE_TFRT_GPU_CLIENT"


def _jax() -> dict[str, Any]:
    if importlib.util.find_spec("jax") is None:
        return {"installed": False}
    if (why := _why_not("jax")) is not None:
        return {"installed": True, "why_not": why}
    import jax

    facts: dict[str, Any] = {
        "installed": True,
        "x64": bool(jax.config.read("jax_enable_x64")),
        "xla_flags": os.environ.get("XLA_FLAGS"),
        _OTHER_CLIENT: os.environ.get(_OTHER_CLIENT),
    }
    try:
        devices = [str(device) for device in jax.devices()]
    except RuntimeError as error:  # no backend starts
        return facts | {"why_not": _one_line(error)}
    return facts | {"backend": jax.default_backend(), "devices": devices}


# Settings of both allocators for a GPU that they share. JAX takes three quarters of the GPU's
# memory at its start unless the first variable is false. bridge sets none of them.
ALLOCATOR_VARIABLES = (
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_ALLOCATOR",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
)


def _allocators(frameworks: Sequence[str]) -> dict[str, Any]:
    """Returns the memory that allocators of frameworks hold on each GPU, and their settings."""
    facts: dict[str, Any] = {name: os.environ.get(name) for name in ALLOCATOR_VARIABLES}
    if "torch" in frameworks:
        import torch

        if torch.cuda.is_available():
            for index in range(torch.cuda.device_count()):
                free, total = torch.cuda.mem_get_info(index)
                facts[f"torch_cuda_{index}"] = {
                    "backend": torch.cuda.get_allocator_backend(),
                    "bytes_allocated": torch.cuda.memory_allocated(index),
                    "bytes_reserved": torch.cuda.memory_reserved(index),
                    "device_bytes_free": free,
                    "device_bytes": total,
                }
    if "jax" in frameworks:
        import jax

        for device in jax.local_devices():
            statistics = device.memory_stats()
            if statistics:
                kept = ("bytes_in_use", "bytes_reserved", "pool_bytes", "bytes_limit")
                facts[f"jax_{device}"] = {
                    name: statistics[name] for name in kept if name in statistics
                }
    held = any(name.startswith(("torch_", "jax_")) for name in facts)
    facts["preallocates_now"] = _preallocates() if held else False
    return facts


def _preallocates() -> bool:
    """True if JAX will take most of a GPU's memory at its start, according to its variables."""
    wanted = os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "true").lower() not in ("false", "0")
    return wanted and os.environ.get("XLA_PYTHON_CLIENT_ALLOCATOR", "default") != "platform"


def _cuda() -> dict[str, Any]:
    why = _cuda_files.why_not()
    facts: dict[str, Any] = {"usable": why is None, "devices": _native.cuda_device_count()}
    driver = Path("/proc/driver/nvidia/version")
    facts["driver"] = driver.read_text().splitlines()[0] if driver.exists() else None
    if not facts["usable"]:
        facts["why_not"] = why
    return facts


def _memory() -> dict[str, Any]:
    try:
        huge_pages = HUGE_PAGES.read_text().split("[")[1].split("]")[0]
    except (OSError, IndexError):
        huge_pages = None
    return {
        "transparent_huge_pages": huge_pages,
        "peak_resident_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "malloc_preload": os.environ.get("LD_PRELOAD"),
    }


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name.replace('_', ' ')} {text}" for name, text in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return str(value)
