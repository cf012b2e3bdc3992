// Enqueues the levels of the tree of column sums, one after the other.
#include "drivers/columns/column_sums.cuh"

#include <bridge/bridge.h>

#include "drivers/columns/column_sums_cuda.h"

namespace bridge::columns {
namespace {

struct Tree {
  const char* (*launch)(simt::Grid, size_t, void*, const TreeParams&);
  const char* (*load)();
};
constexpr Tree kTreeSingle = {simt::launch<TreeKernel<float>>, simt::load<TreeKernel<float>>};
constexpr Tree kTreeDouble = {simt::launch<TreeKernel<double>>, simt::load<TreeKernel<double>>};

// Returns the parents of the leaves, which are the leaves of the next level.
Leaves parents_of(Leaves leaves) {
  leaves.count = ceil_divide(leaves.count, kTreeWidth);
  return leaves;
}

}  // namespace

size_t bytes_of(const Leaves& leaves) {
  const size_t bytes = static_cast<size_t>(leaves.batch) * static_cast<size_t>(leaves.count) *
                       static_cast<size_t>(leaves.cols) *
                       (leaves.is_double ? sizeof(double) : sizeof(float));
  return (bytes + 15) / 16 * 16;
}

size_t tree_bytes(const Leaves& leaves) {
  size_t bytes = 0;
  for (Leaves level = parents_of(leaves); level.count > 1; level = parents_of(level))
    bytes += bytes_of(level);
  return bytes;
}

const char* enqueue_tree(const Leaves& leaves, const void* values, const Array& output,
                         void* workspace, void* stream) {
  const Tree& tree = leaves.is_double ? kTreeDouble : kTreeSingle;
  char* level = static_cast<char*>(workspace);
  TreeParams params{};
  params.batch = leaves.batch;
  params.count = leaves.count;
  params.cols = leaves.cols;
  params.values = values;
  params.row = output;
  for (;;) {
    const int64_t nodes = params.count > 0 ? ceil_divide(params.count, kTreeWidth) : 1;
    params.sums = nodes > 1 ? level : nullptr;
    simt::Grid grid;
    grid.x = ceil_divide(leaves.cols, kTreeColumns);
    grid.y = leaves.batch < simt::kMaxGridYZ / nodes ? leaves.batch * nodes : simt::kMaxGridYZ;
    if (const char* error = tree.launch(grid, 0, stream, params)) return error;
    if (nodes == 1) return nullptr;
    params.values = level;
    params.count = nodes;
    level += bytes_of({leaves.batch, nodes, leaves.cols, leaves.is_double});
  }
}

const char* load_tree() {
  if (const char* error = kTreeSingle.load()) return error;
  return kTreeDouble.load();
}

}  // namespace bridge::columns
