// Column sums of consecutive whole rows. Include it only in files compiled once for each
// instruction set.
#ifndef BRIDGE_TILES_COLUMN_STACK_H_
#define BRIDGE_TILES_COLUMN_STACK_H_

#include "cpu/tile.h"
#include "drivers/columns/column_sum_tree.h"
#include "drivers/dtypes.h"
#include "program/machine.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

// Returns the levels that a stack of column sums needs for `rows` rows.
inline int64_t levels_of(int64_t rows) {
  int64_t leaves = leaf_count(rows), levels = 2;
  for (; leaves > 0; leaves /= 2) ++levels;
  return levels;
}

// The sums of whole rows in the tree of column_sum_tree.h. Finished nodes are on a stack, one for
// each 1 bit in the number of finished leaves, as in a binary counter.
template <class Real>
struct ColumnStack {
  Real* nodes;  // levels * stride
  int64_t stride, leaves, rows, depth;
  int64_t first, width;  // the columns of this stack

  // Returns how many numbers the memory of a stack holds.
  static int64_t size(int64_t rows, int64_t cols) { return levels_of(rows) * round_up(cols); }

  Real* leaf() const { return nodes + depth * stride; }
  void begin(Real* memory, int64_t cols) {
    nodes = memory;
    stride = width = round_up(cols);
    leaves = rows = depth = first = 0;
  }
  // Sets the sums of a new leaf to -0.0, the identity of addition.
  void clear_leaf() const { fill(leaf() + first, width, Real(-0.0)); }
  // Returns a stack over the same memory for the columns [begin, end): one task adds them while
  // other tasks add other columns.
  ColumnStack part(int64_t begin, int64_t end) const {
    ColumnStack part = *this;
    part.first = begin;
    part.width = round_up(end - begin);
    return part;
  }
  // Counts `count` rows that tasks have already added.
  void rows_are_added(int64_t count) {
    const int64_t all = width;
    width = 0;
    for (int64_t i = 0; i < count; ++i) row_is_added();
    width = all;
  }
  void merge() {
    --depth;
    Real* const sum = leaf() + first;
    add_to(sum, sum + stride, width);
  }
  void row_is_added() {
    if (++rows < kLeafRows) return;
    for (int64_t bits = leaves; bits & 1; bits >>= 1) merge();
    ++leaves;
    ++depth;
    rows = 0;
    clear_leaf();
  }
  void write(const interpreter::Sums& sums, int64_t cols) {
    while (depth > 0) merge();
    const int64_t count = smaller(width, cols - first);
    const interpreter::RoundedSums& output = sums.output;
    if (sums.node != nullptr)
      copy(static_cast<Real*>(sums.node) + first, nodes + first, count);
    else
      store_run(output.dtype, output.data + first * element_bytes(output.dtype), nodes + first,
                count);
  }
};

template <class Real>
void add_nodes(void* nodes, int64_t count, int64_t cols, const interpreter::RoundedSums& output) {
  constexpr int64_t kWidth = 16384 / sizeof(Real);  // columns that stay in the first-level cache
  for (int64_t col = 0; col < cols; col += kWidth) {
    const int64_t width = smaller(kWidth, cols - col);
    Real* const node = static_cast<Real*>(nodes) + col;
    for (int64_t step = 1; step < count; step *= 2)
      for (int64_t i = 0; i + step < count; i += 2 * step)
        add_to(node + i * cols, node + (i + step) * cols, width);
    store_run(output.dtype, output.data + col * element_bytes(output.dtype), node, width);
  }
}

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_TILES_COLUMN_STACK_H_
