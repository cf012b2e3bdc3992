#!/usr/bin/env python3
"""Compares the tag of a release with bridge/_version.py and CHANGELOG.md.

The exit status is 1, with the reason, if the tag is not v and the version, or if the changelog's
newest version is another or lacks upgrade notes.
"""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def version() -> str:
    """Returns the version of the source tree, without importing bridge."""
    return runpy.run_path(str(ROOT / "bridge" / "_version.py"))["__version__"]


def fault(tag: str, version: str, changelog: str) -> str | None:
    """Returns the reason why a tag is no release, or None."""
    if tag != f"v{version}":
        return f"the tag is {tag}, but bridge/_version.py has {version}"
    title, _, notes = changelog.partition("\n## ")[2].partition("\n")
    if title.split(" ")[0] != version:
        return f"the newest part of CHANGELOG.md is {title}, expected {version}"
    if not re.match(r"\s*### Upgrade", notes):
        return f"CHANGELOG.md has no upgrade notes at the head of {version}"
    return None


def main(arguments: list[str]) -> int:
    """Runs the command line: the tag is the one argument."""
    (tag,) = arguments
    if reason := fault(tag, version(), (ROOT / "CHANGELOG.md").read_text()):
        print(f"check_release: {reason}", file=sys.stderr)
        return 1
    print(f"check_release: {tag}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
