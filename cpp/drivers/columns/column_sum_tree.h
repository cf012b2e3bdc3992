// The shape of the tree of column sums, for the CPU and the CUDA kernels.
#ifndef BRIDGE_DRIVERS_COLUMNS_COLUMN_SUM_TREE_H_
#define BRIDGE_DRIVERS_COLUMNS_COLUMN_SUM_TREE_H_

#include <stdint.h>

namespace bridge {

// The bits of every bias gradient depend on these numbers (docs/numerics.md). A chunk is kChunkRows
// consecutive rows of one batch: kLeaves leaves of kLeafRows rows each. A leaf
// starts at -0.0, the exact identity of IEEE addition, and adds its rows in order. The leaves of a
// chunk are added as ((l0+l1)+(l2+l3))+((l4+l5)+(l6+l7)), the chunks by the aligned binary tree, in
// which a node without a right child is its left child. The sum of no rows is +0.
constexpr int64_t kChunkRows = 128;
constexpr int64_t kLeafRows = 16;
constexpr int64_t kLeaves = kChunkRows / kLeafRows;

constexpr int64_t leaf_count(int64_t rows) { return (rows + kLeafRows - 1) / kLeafRows; }
constexpr int64_t chunk_count(int64_t rows) { return (rows + kChunkRows - 1) / kChunkRows; }

}  // namespace bridge

#endif  // BRIDGE_DRIVERS_COLUMNS_COLUMN_SUM_TREE_H_
