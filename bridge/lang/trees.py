"""The constants of the trees in which sums are taken; the bits of every sum depend on them.

cpp/drivers/rows/row_sum_tree.h and cpp/drivers/columns/column_sum_tree.h describe the trees.
"""

from __future__ import annotations

CHUNK_COLUMNS = 1024  # of a sum along a row
QUARTER_COLUMNS = CHUNK_COLUMNS // 4  # the columns of a quarter are added first
CHUNK_ROWS, LEAF_ROWS = 128, 16  # of a column sum: the rows of a leaf are added in order
