"""The language of docstrings, comments and pages (CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Words that begin a fragment instead of a sentence.
FRAGMENTS = re.compile("(?:As|How|Of|That|Those|What|Where|Whether|Which|Who|With|Without)$")
PRONOUNS = {"which", "what", "that", "who", "whose", "those"}
MOST_PRONOUNS = 18  # in 1,000 words
COMMENT = re.compile(r"^[ \t]*//+(.*)\n(?:[ \t]*//.*\n)*", re.MULTILINE)
CODE = re.compile(r"```.*?```", re.DOTALL)


def _docstrings() -> Iterator[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for folder in ("bridge", "cmake", "examples", "scripts", "tests", "tools"):
        for file in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, kinds) and (text := ast.get_docstring(node)):
                    yield text


def _comments() -> Iterator[str]:
    """Yields the first line of each comment of lines of its own."""
    for ending in ("h", "cpp", "cu", "cuh"):
        for file in (ROOT / "cpp").rglob(f"*.{ending}"):
            yield from COMMENT.findall(file.read_text())


def _share_of_fragments(texts: Iterator[str]) -> float:
    words = [found[0] for text in texts if (found := re.findall(r"\w+", text))]
    assert len(words) > 1000
    return sum(FRAGMENTS.match(word) is not None for word in words) / len(words)


def test_docstrings_are_sentences() -> None:
    assert _share_of_fragments(_docstrings()) <= 0.02


def test_comments_are_sentences() -> None:
    assert _share_of_fragments(_comments()) <= 0.03


def test_pages_have_few_pronouns() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    found = {}
    for page in pages:
        words = re.findall(r"[a-z']+", CODE.sub("", page.read_text()).lower())
        if len(words) >= 200:  # one more pronoun says nothing about a shorter page
            found[str(page.relative_to(ROOT))] = (
                sum(w in PRONOUNS for w in words) * 1000 / len(words)
            )
    assert {page: round(n, 1) for page, n in found.items() if n > MOST_PRONOUNS} == {}
