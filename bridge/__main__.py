"""`python -m bridge`: info, parity, compare, bench, scaling, demo."""

import sys

from bridge.cli.main import main
from bridge.cli.streams import run

sys.exit(run(main))
