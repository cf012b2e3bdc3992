// The levels of the column sums' tree, enqueued one after the other.
#include "walks/columns/column_sums.cuh"

#include <bridge/bridge.h>

#include "walks/columns/column_sum_tree.h"
#include "walks/columns/column_sums_cuda.h"

namespace bridge::columns {
namespace {

struct Tree {
  const char* (*launch)(simt::Grid, size_t, void*, const TreeParams&);
  const char* (*load)();
};
constexpr Tree kTreeSingle = {simt::launch<TreeKernel<float>>, simt::load<TreeKernel<float>>};
constexpr Tree kTreeDouble = {simt::launch<TreeKernel<double>>, simt::load<TreeKernel<double>>};

// One level of partial sums in the workspace.
size_t level_bytes(const Sizes& sizes, bool is_double, int64_t nodes) {
  const size_t bytes = static_cast<size_t>(sizes.batch) * static_cast<size_t>(nodes) *
                       static_cast<size_t>(sizes.cols) *
                       (is_double ? sizeof(double) : sizeof(float));
  return (bytes + 15) / 16 * 16;
}

}  // namespace

size_t workspace_bytes(const Sizes& sizes, bool is_double) {
  size_t bytes = 0;
  for (int64_t nodes = chunk_count(sizes.rows); nodes > 1; nodes = ceil_divide(nodes, kTreeWidth)) {
    bytes += level_bytes(sizes, is_double, nodes);
  }
  return bytes;
}

const char* enqueue_tree(const Sizes& sizes, bool is_double, const Array& output, void* workspace,
                         void* stream) {
  const Tree& tree = is_double ? kTreeDouble : kTreeSingle;
  char* values = static_cast<char*>(workspace);
  TreeParams params{};
  params.batch = sizes.batch;
  params.count = chunk_count(sizes.rows);
  params.cols = sizes.cols;
  params.row = output;
  for (;;) {
    const int64_t nodes = params.count > 0 ? ceil_divide(params.count, kTreeWidth) : 1;
    params.values = values;
    if (params.count > 1) values += level_bytes(sizes, is_double, params.count);
    params.sums = nodes > 1 ? values : nullptr;
    simt::Grid grid;
    grid.x = ceil_divide(sizes.cols, kTreeColumns);
    grid.y = sizes.batch < simt::kMaxGridYZ / nodes ? sizes.batch * nodes : simt::kMaxGridYZ;
    if (const char* error = tree.launch(grid, 0, stream, params)) return error;
    if (nodes == 1) return nullptr;
    params.count = nodes;
  }
}

const char* load_tree() {
  if (const char* error = kTreeSingle.load()) return error;
  return kTreeDouble.load();
}

}  // namespace bridge::columns
