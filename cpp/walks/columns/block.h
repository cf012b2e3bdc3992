// A block of rows and columns of one batch: what an op's driver hands to the code that is compiled
// once for each instruction set, to be computed in one thread.
#ifndef BRIDGE_WALKS_COLUMNS_BLOCK_H_
#define BRIDGE_WALKS_COLUMNS_BLOCK_H_

#include <bridge/bridge.h>
#include <stdint.h>

namespace bridge {

// The array of an operand from the block's first element on; data is null where it is absent.
struct BlockArray {
  char* data;
  int64_t row_bytes;  // From one row to the next.
  int32_t dtype;
};

struct BlockPair {
  BlockArray full;
  BlockArray row;
};

struct Block {
  int64_t rows;
  int64_t cols;
  // The row vectors have this many elements and repeat along the columns: several short rows that
  // lie next to one another are computed as one. Equal to cols otherwise, and with column sums.
  int64_t row_period;
  // Column sums over the rows of the block, which begin at a multiple of 2^n chunks and are at most
  // 2^n chunks: either unrounded in the arithmetic type (a node of the tree), or rounded into
  // output_row, or not wanted (both null).
  void* sums;
  BlockArray output_row;
  // The operands are larger than the caches of a core.
  bool prefetch;

  // Always inline, as all that the kernels of each instruction set use.
  __attribute__((always_inline)) bool wants_sums() const {
    return sums != nullptr || output_row.data != nullptr;
  }

  // For what an op's block counts in rows of the call: it moves on by so many, or has so many in
  // each of its rows. An op that counts any has its own.
  void skip_rows(int64_t) {}
  void fold_rows(int64_t) {}
};

// A block with column sums has at most so many chunks, so that the levels of the tree stay in
// cache.
constexpr int64_t kBlockChunks = 32;

// Adds the nodes of one level, count vectors of cols values one stride of elements apart, up to the
// root of the tree, and rounds it into output_row. Overwrites the nodes.
using AddNodes = void (*)(void* nodes, int64_t count, int64_t stride, int64_t cols,
                          const BlockArray& output_row);

}  // namespace bridge

#endif  // BRIDGE_WALKS_COLUMNS_BLOCK_H_
