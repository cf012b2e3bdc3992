// The tree of a row's sum; the bits of every softmax depend on it (docs/numerics.md). The place of
// a term follows from its column alone, for any device, instruction set and number of threads.
//
// A chunk is kSumChunk columns e[0 .. 1023]:
//   a[i] = (e[i] + e[i + 256]) + (e[i + 512] + e[i + 768])        for i below 256, then
//   a[i] = a[i] + a[i + h]                                        for i below h = 128, 64, ..., 1.
// The chunks are added in the aligned binary tree, in which a node without a right child is its
// left child. Missing terms (past the end of the row, or excluded from the sum) are -0.0, the exact
// identity of IEEE addition: leaving them out gives the same bits.
#ifndef BRIDGE_DRIVERS_ROWS_ROW_SUM_TREE_H_
#define BRIDGE_DRIVERS_ROWS_ROW_SUM_TREE_H_

#include <stdint.h>

namespace bridge {

constexpr int64_t kSumChunk = 1024;
constexpr int64_t kSumQuarter = kSumChunk / 4;

}  // namespace bridge

#endif  // BRIDGE_DRIVERS_ROWS_ROW_SUM_TREE_H_
