"""stdout and stderr of a command: replacements for missing characters, and write errors."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import re
import signal
import sys
import unicodedata
from collections.abc import Callable, Iterator

PLAIN = {
    "≠": "!=",
    "≤": "<=",
    "≥": ">=",
    "≈": "~",
    "×": "x",
    "·": "*",
    "∘": "*",
    "÷": "/",
    "−": "-",
    "–": "-",
    "→": "->",
    "◂": "<",
    "…": "...",
    "′": "'",
    "″": "''",
    "⟨": "<",
    "⟩": ">",
    "⌈": "ceil(",
    "⌉": ")",
    "⁽": "(",
    "⁾": ")",
    "Σ": "sum ",
    "∏": "product ",
    "µ": "u",
    "μ": "u",
    "α": "alpha",
    "β": "beta",
    "γ": "gamma",
    "κ": "kappa",
}
SUPERSCRIPTS = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻ⁿ]+")
_HANDLER = "bridge.plain"


def plain(text: str, encoding: str) -> str:
    """Returns the text, with replacements for characters that the encoding lacks."""

    def has(part: str) -> bool:
        try:
            return bool(part.encode(encoding))
        except UnicodeEncodeError:
            return False

    if not text or has(text):
        return text
    text = SUPERSCRIPTS.sub(
        lambda found: found[0] if has(found[0]) else "^" + unicodedata.normalize("NFKC", found[0]),
        text,
    )
    return "".join(one if has(one) else _written_out(one) for one in text)


def _written_out(character: str) -> str:
    # Letters lose their accents; a sign without its strokes could mean the opposite.
    if character in PLAIN or not character.isalnum():
        return PLAIN.get(character, "?")
    base = unicodedata.normalize("NFKD", character)
    return base.encode("ascii", "ignore").decode() or "?"


def _replace(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return plain(error.object[error.start : error.end], "ascii"), error.end


class OutputError(Exception):
    """An error of writing to stdout; the cause has the reason."""


class _Output(io.TextIOWrapper):
    """stdout with its own type of error."""

    def write(self, text: str, /) -> int:
        with _as_output_error():
            return super().write(text)

    def flush(self) -> None:
        with _as_output_error():
            super().flush()


@contextlib.contextmanager
def _as_output_error() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError from error


def run(command: Callable[[], int]) -> int:
    """Runs the command of a process and returns its exit status.

    If stdout cannot be written to, the command ends with a line on stderr and status 2. If its
    reader is gone (`| head`), it ends silently, with the status of a program that SIGPIPE ends.
    """
    codecs.register_error(_HANDLER, _replace)
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(errors=_HANDLER)
    if isinstance(sys.stdout, io.TextIOWrapper):
        encoding, lines = sys.stdout.encoding, sys.stdout.line_buffering
        sys.stdout = _Output(sys.stdout.detach(), encoding, _HANDLER, line_buffering=lines)
    try:
        try:
            return command()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OutputError as error:
        # Discard the buffers, so that Python prints no error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        reason = error.__cause__
        if isinstance(reason, BrokenPipeError):
            return 128 + signal.SIGPIPE
        assert isinstance(reason, OSError)
        print(f"python -m bridge: cannot write to stdout: {reason.strerror}", file=sys.stderr)
        return 2
