"""pytest on the package that lies in the current folder, whatever is installed."""

import sys

import pytest

# An editable install answers for `bridge` before the path is searched.
sys.meta_path = [f for f in sys.meta_path if "ScikitBuildRedirecting" not in type(f).__name__]

if __name__ == "__main__":
    sys.exit(pytest.main(sys.argv[1:]))
