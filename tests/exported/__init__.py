"""Exported programs of an earlier bridge, which later ones must run: see docs/architecture.md.

`python -m tests.exported torch` (or `jax`) writes them. Write them again only if the rule of
compatibility gives up their version, or for a change that is meant to change bits.
"""
