"""The bits that results must have, whatever becomes of the code.

`python -m tests.golden` writes them to bits.json. They are written anew only where a change means
to change bits, in a commit of its own that says which and why.
"""
