"""Writes the exported programs of one framework anew."""

from __future__ import annotations

import argparse

from tests.exported.programs import WRITERS, write

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("framework", choices=WRITERS)

if __name__ == "__main__":
    write(parser.parse_args().framework)
