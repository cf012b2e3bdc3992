"""The public functions of the ops: their signatures, defaults and docstrings."""
