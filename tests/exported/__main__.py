"""Writes exported programs of one framework anew."""

from __future__ import annotations

import argparse

from tests.exported.programs import JAX, TORCH, WRITERS, write

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("framework", choices=WRITERS)
parser.add_argument("names", nargs="+", choices={*TORCH, *JAX}, help="the files")

if __name__ == "__main__":
    arguments = parser.parse_args()
    write(arguments.framework, arguments.names)
