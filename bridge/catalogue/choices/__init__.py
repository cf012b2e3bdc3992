"""Choices of columns: experts for tokens, and tokens drawn from their probabilities.

- `experts`: the router of a mixture of experts, and the moves of rows to experts and back.
- `sampling`: the checks of a draw.
"""
