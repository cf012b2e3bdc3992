"""`python -m bridge`: info, parity, bench, demo."""

import sys

from bridge.cli.main import main

sys.exit(main())
