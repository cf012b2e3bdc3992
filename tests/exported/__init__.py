"""Exported programs of an earlier bridge, which later ones must run: see docs/architecture.md.

`python -m tests.exported` writes the files. Write them again only if the rule of compatibility
gives up the version that they have, or for a change that is meant to change bits.
"""
