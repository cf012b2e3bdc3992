"""Writes the exported programs anew."""

from __future__ import annotations

from tests.exported.programs import write

if __name__ == "__main__":
    write()
