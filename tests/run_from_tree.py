"""Runs pytest on the package in the current folder, whatever is installed."""

import os
import sys

import pytest

# Processes started by tests do the same.
FROM_TREE = "BRIDGE_TESTS_FROM_TREE"


def forget_installed_package() -> None:
    """Removes an editable install, which would resolve `bridge` before the path is searched."""
    sys.meta_path = [f for f in sys.meta_path if "ScikitBuild" not in type(f).__name__]


if __name__ == "__main__":
    os.environ[FROM_TREE] = "1"
    forget_installed_package()
    sys.exit(pytest.main(sys.argv[1:]))

if __name__ == "__mp_main__":  # in a process started by multiprocessing
    forget_installed_package()
