// The part of the column sums' tree above the chunks, as launchers call it.
#ifndef BRIDGE_DRIVERS_COLUMNS_COLUMN_SUMS_CUDA_H_
#define BRIDGE_DRIVERS_COLUMNS_COLUMN_SUMS_CUDA_H_

#include <stddef.h>
#include <stdint.h>

#include "drivers/columns/elements.cuh"

namespace bridge::columns {

constexpr int64_t ceil_divide(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// Sums of chunks of rows, or of 16 rows (kLeafRows), which have the same tree: [batch, count, cols]
// in the arithmetic type.
struct Leaves {
  int64_t batch;
  int64_t count;
  int64_t cols;
  bool is_double;
};

// Returns the bytes of the leaves, rounded up to a multiple of 16.
size_t bytes_of(const Leaves& leaves);

// Returns the bytes of the tree's levels above the leaves.
size_t tree_bytes(const Leaves& leaves);

// Adds the leaves and writes the sums to output; without leaves the sums are zero. Returns NULL or
// the error.
const char* enqueue_tree(const Leaves& leaves, const void* values, const Array& output,
                         void* workspace, void* stream);

// Loads the kernels of the tree onto the current device; returns NULL or the error.
const char* load_tree();

}  // namespace bridge::columns

#endif  // BRIDGE_DRIVERS_COLUMNS_COLUMN_SUMS_CUDA_H_
