// The tree of column_sum_tree.h on one tile of columns, for the files that are compiled
// once for each instruction set: include it there only.
#ifndef BRIDGE_WALKS_COLUMNS_COLUMN_SUMS_H_
#define BRIDGE_WALKS_COLUMNS_COLUMN_SUMS_H_

#include "cpu/tile.h"
#include "walks/columns/column_sum_tree.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

// The sums of one tile of columns over the rows of a block, lane by lane. A lane is a leaf of an
// aligned binary tree: eight lanes are a chunk, and a missing leaf is -0.0, so "a node without a
// right child is its left child" holds at every level. The finished nodes stand on a stack, one for
// each bit of the number of lanes, as in a binary counter.
template <class Real, int64_t kWidth, int64_t kMostChunks>
class ColumnSums {
 public:
  void begin(int64_t cols) {
    cols_ = round_up(cols);
    lanes_ = rows_ = 0;
    depth_ = 0;
    fill(nodes_[0], cols_, Real(-0.0));
  }
  // Where the rows of the present lane are added.
  Real* lane() { return nodes_[depth_]; }
  void added(int64_t rows) {
    rows_ += rows;
    if (rows_ < kLaneRows) return;
    for (int64_t bits = lanes_; bits & 1; bits >>= 1) merge();
    ++lanes_;
    ++depth_;
    rows_ = 0;
    fill(nodes_[depth_], cols_, Real(-0.0));
  }
  // Adds rows of `cols` numbers that stand side by side.
  void add_rows(const Real* values, int64_t rows, int64_t cols) {
    while (rows > 0) {
      const int64_t run = smaller(kLaneRows - rows_, rows);
      add_rows_to(lane(), values, run, cols);
      added(run);
      values += run * cols;
      rows -= run;
    }
  }
  // The sum of everything added. An empty lane at the end is -0.0: adding it changes nothing.
  const Real* end() {
    while (depth_ > 0) merge();
    return nodes_[0];
  }

 private:
  void merge() {
    --depth_;
    add_to(nodes_[depth_], nodes_[depth_ + 1], cols_);
  }

  static constexpr int kDepth = 10;
  static_assert(kMostChunks * kLanes < int64_t{1} << (kDepth - 1), "the stack holds a block");
  alignas(64) Real nodes_[kDepth][kWidth];
  int64_t cols_, lanes_, rows_;
  int depth_;
};

struct NoSums {};
template <bool kSums, class Sums>
struct SumsIf {
  using type = Sums;
};
template <class Sums>
struct SumsIf<false, Sums> {
  using type = NoSums;
};

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_WALKS_COLUMNS_COLUMN_SUMS_H_
