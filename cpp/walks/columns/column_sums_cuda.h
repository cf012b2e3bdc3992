// How the sums of the chunks become the sums of the columns: what the launchers ask for.
#ifndef BRIDGE_WALKS_COLUMNS_COLUMN_SUMS_CUDA_H_
#define BRIDGE_WALKS_COLUMNS_COLUMN_SUMS_CUDA_H_

#include <stddef.h>
#include <stdint.h>

#include "walks/columns/elements.cuh"

namespace bridge::columns {

constexpr int64_t ceil_divide(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

struct Sizes {
  int64_t batch;
  int64_t rows;
  int64_t cols;
};

// What the partial sums of every level take, each level a whole number of 16-byte units.
size_t workspace_bytes(const Sizes& sizes, bool is_double);

// Adds the chunks' sums, [batch, chunks, cols] in the arithmetic type at the beginning of the
// workspace, up to output. With no rows at all the sums are zero. NULL or what went wrong.
const char* enqueue_tree(const Sizes& sizes, bool is_double, const Array& output, void* workspace,
                         void* stream);

// Brings its kernels onto the current device; NULL or what went wrong.
const char* load_tree();

}  // namespace bridge::columns

#endif  // BRIDGE_WALKS_COLUMNS_COLUMN_SUMS_CUDA_H_
