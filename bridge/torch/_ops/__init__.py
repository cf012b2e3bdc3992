"""The public functions and modules of the ops: their signatures, defaults and docstrings."""
