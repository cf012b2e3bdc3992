"""pytest on the package that lies in the current folder, whatever is installed."""

import os
import sys

import pytest

# Processes that tests start do the same.
FROM_TREE = "BRIDGE_TESTS_FROM_TREE"


def forget_installed_package() -> None:
    """An editable install answers for `bridge` before the path is searched."""
    sys.meta_path = [f for f in sys.meta_path if "ScikitBuildRedirecting" not in type(f).__name__]


if __name__ == "__main__":
    os.environ[FROM_TREE] = "1"
    forget_installed_package()
    sys.exit(pytest.main(sys.argv[1:]))

if __name__ == "__mp_main__":  # in a process that multiprocessing has started
    forget_installed_package()
