"""The bits that results must have, whatever changes in the code.

`python -m tests.golden` writes them to bits.json. Write them again only for a change that is meant
to change bits, in its own commit, which names the results and the reason.
"""
