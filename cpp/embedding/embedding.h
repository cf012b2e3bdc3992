// Gradients of embeddings: the positions of an id, the part of a call that one task computes, and
// the kernels for it. Sums are in the tree of drivers/columns/column_sum_tree.h.
#ifndef BRIDGE_EMBEDDING_EMBEDDING_H_
#define BRIDGE_EMBEDDING_EMBEDDING_H_

#include <bridge/bridge.h>
#include <stddef.h>

#include "cpu/isa.h"
#include "math/scalar.h"

namespace bridge::embedding {

// Returns element i of an array of int32 or int64.
BRIDGE_HD int64_t index_at(const void* indices, int32_t dtype, int64_t i) {
  return dtype == BRIDGE_INT32 ? static_cast<const int32_t*>(indices)[i]
                               : static_cast<const int64_t*>(indices)[i];
}

// Rows [first, end) of the result of one batch, and some of its columns. The terms of row r are
// those of order[starts[r]] to order[starts[r + 1] - 1].
struct Part {
  const bridge_embedding_gradient* call;
  const int64_t* starts;
  const int64_t* order;
  const char* terms;  // at the first of the columns, as is the result
  char* result;
  int64_t first, end, cols;
};

struct Table {
  // Returns the scratch memory (bytes) of a part, with room to align it to 64 bytes.
  size_t (*scratch_bytes)(int64_t count, int64_t cols);
  void (*run[4])(const Part& part, void* scratch);  // by bridge_dtype
};

}  // namespace bridge::embedding

namespace bridge {
using EmbeddingTable = embedding::Table;
BRIDGE_DECLARE_PER_ISA(EmbeddingTable, embedding_table)
}  // namespace bridge

#endif  // BRIDGE_EMBEDDING_EMBEDDING_H_
