// The tree in which a row is summed; the bits of every softmax depend on it (docs/numerics.md). It
// is fixed by the column alone, whatever the device, the instruction set and the threads.
//
// A chunk is kSumChunk columns e[0 .. 1023]:
//   a[i] = (e[i] + e[i + 256]) + (e[i + 512] + e[i + 768])        for i below 256, then
//   a[i] = a[i] + a[i + h]                                        for i below h = 128, 64, ..., 1,
// and the chunks meet in the aligned binary tree, in which a node without a right child is its left
// child. What is missing (past the end of the row, or without a part in the sum) is -0.0, the exact
// identity of IEEE addition: leaving it out is the same.
#ifndef BRIDGE_WALKS_ROWS_ROW_SUM_TREE_H_
#define BRIDGE_WALKS_ROWS_ROW_SUM_TREE_H_

#include <stdint.h>

namespace bridge {

constexpr int64_t kSumChunk = 1024;
constexpr int64_t kSumQuarter = kSumChunk / 4;

}  // namespace bridge

#endif  // BRIDGE_WALKS_ROWS_ROW_SUM_TREE_H_
