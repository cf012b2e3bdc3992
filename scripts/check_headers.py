#!/usr/bin/env python3
"""Compares the headers of third_party with those of the installed packages.

A package with the same version of the API must have the same text. A package with a newer minor
version may differ: a line names the file and both versions. The exit status is 1 if a text differs
otherwise, and 2 if no package is installed.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

THIRD_PARTY = Path(__file__).resolve().parent.parent / "third_party"
_VERSION = re.compile(r"^#define (?:XLA_FFI_API|DLPACK)_(MAJOR|MINOR)(?:_VERSION)? (\d+)", re.M)


@dataclass(frozen=True)
class Origin:
    """Headers that one package carries.

    Attributes:
      package: the name that Python imports.
      versioned: the header that states the version of the API.
      headers: all headers, relative to third_party and to the package's folder `include`.
    """

    package: str
    versioned: str
    headers: tuple[str, ...]


ORIGINS = (
    Origin(
        "jaxlib",
        "xla/ffi/api/c_api.h",
        ("xla/ffi/api/api.h", "xla/ffi/api/c_api.h", "xla/ffi/api/ffi.h"),
    ),
    Origin("tvm_ffi", "dlpack/dlpack.h", ("dlpack/dlpack.h",)),
)


def include_folder(package: str) -> Path | None:
    """Returns the folder of an installed package's headers, without importing the package."""
    spec = importlib.util.find_spec(package)
    locations = spec.submodule_search_locations if spec else None
    return Path(next(iter(locations)), "include") if locations else None


def version_of(header: Path) -> tuple[int, int]:
    """Returns the major and minor version that a header states."""
    found = {name: int(number) for name, number in _VERSION.findall(header.read_text())}
    return found["MAJOR"], found["MINOR"]


def compare(origin: Origin, installed: Path) -> tuple[list[str], bool]:
    """Returns lines about the headers that differ, and whether a difference is a fault."""
    ours, theirs = (version_of(at / origin.versioned) for at in (THIRD_PARTY, installed))
    is_fault = ours[0] != theirs[0] or ours >= theirs
    lines = []
    for header in origin.headers:
        texts = [(at / header).read_text().splitlines() for at in (THIRD_PARTY, installed)]
        if texts[0] != texts[1]:
            changes = sum(line[:2] in ("+ ", "- ") for line in difflib.ndiff(*texts))
            versions = " and ".join(f"{major}.{minor}" for major, minor in (ours, theirs))
            lines.append(f"{header}: {changes} lines differ (API {versions})")
    return lines, is_fault and bool(lines)


def main(find: Callable[[str], Path | None] = include_folder) -> int:
    """Prints a line for each package and each differing header."""
    installed = {origin: folder for origin in ORIGINS if (folder := find(origin.package))}
    is_faulty = False
    for origin in ORIGINS:
        if origin not in installed:
            print(f"{origin.package}: not installed, its headers were not compared")
            continue
        lines, is_fault = compare(origin, installed[origin])
        is_faulty |= is_fault
        verdict = "FAILED" if is_fault else "a newer API" if lines else "the same text"
        print(f"{origin.package}: {verdict}")
        for line in lines:
            print(f"  {line}")
    return 1 if is_faulty else 0 if installed else 2


if __name__ == "__main__":
    sys.exit(main())
