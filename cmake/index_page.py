"""Writes the README of the package's metadata: its relative links work in the source tree alone.

With a URL named Source in pyproject.toml they lead there; without one their text stays, and
pictures are left out. scikit-build-core calls `dynamic_metadata`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_CODE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?://|#)([^)\s]+)\)")


def index_page(readme: str, source: str | None) -> str:
    """Returns a README whose links do not depend on its folder.

    Args:
      readme: Markdown; its fenced blocks stay as they are.
      source: the URL to which a path of the source tree is added, or None.
    """

    def rewritten(link: re.Match[str]) -> str:
        picture, text, path = link.groups()
        if source is not None:
            return f"{picture}[{text}]({source.rstrip('/')}/{path})"
        return "" if picture else text

    parts = _CODE.split(readme)  # the odd ones are code
    return "".join(part if i % 2 else _LINK.sub(rewritten, part) for i, part in enumerate(parts))


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the field `readme` for scikit-build-core."""
    source = project.get("urls", {}).get("Source")
    text = index_page(Path("README.md").read_text(encoding="utf-8"), source)
    return {"readme": {"content-type": "text/markdown", "text": text}}
