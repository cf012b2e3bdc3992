// How the sums of the chunks become the sums of the columns: what the launchers ask for.
#ifndef BRIDGE_WALKS_COLUMNS_COLUMN_SUMS_CUDA_H_
#define BRIDGE_WALKS_COLUMNS_COLUMN_SUMS_CUDA_H_

#include <stddef.h>
#include <stdint.h>

#include "walks/columns/elements.cuh"

namespace bridge::columns {

constexpr int64_t ceil_divide(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// Sums of chunks of rows, or of lanes, of which the tree is the same: [batch, count, cols] in the
// arithmetic type.
struct Leaves {
  int64_t batch;
  int64_t count;
  int64_t cols;
  bool is_double;
};

// What they take, a whole number of 16-byte units.
size_t bytes_of(const Leaves& leaves);

// What the levels of the tree above them take.
size_t tree_bytes(const Leaves& leaves);

// Adds leaves up to output. Without any the sums are zero. NULL or what went wrong.
const char* enqueue_tree(const Leaves& leaves, const void* values, const Array& output,
                         void* workspace, void* stream);

// Brings its kernels onto the current device; NULL or what went wrong.
const char* load_tree();

}  // namespace bridge::columns

#endif  // BRIDGE_WALKS_COLUMNS_COLUMN_SUMS_CUDA_H_
