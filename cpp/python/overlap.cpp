#include "overlap.h"

#include <algorithm>
#include <cstdint>

namespace bridge::python {
namespace {

struct Sizes {
  int64_t batch, rows, cols;
};

int64_t item_bytes(int32_t dtype) {
  return dtype == BRIDGE_FLOAT64 ? 8 : dtype == BRIDGE_FLOAT32 ? 4 : 2;
}

struct Extent {
  uintptr_t first, end;
};

Extent extent_of(const bridge_array& array, const Sizes& sizes) {
  const int64_t bytes = item_bytes(array.dtype);
  int64_t low = 0, high = sizes.cols;
  const int64_t spans[2] = {(sizes.batch - 1) * array.batch_stride,
                            (sizes.rows - 1) * array.row_stride};
  for (const int64_t span : spans) (span < 0 ? low : high) += span;
  const auto base = reinterpret_cast<uintptr_t>(array.data);
  return {base + low * bytes, base + high * bytes};
}

bool identical(const bridge_array& a, const bridge_array& b, const Sizes& sizes) {
  return a.data == b.data && a.dtype == b.dtype &&
         (sizes.rows == 1 || a.row_stride == b.row_stride) &&
         (sizes.batch == 1 || a.batch_stride == b.batch_stride);
}

// Two column ranges of one matrix, as chunk() gives them: the extents interleave, no byte is
// shared.
bool interleaved(const bridge_array& a, const bridge_array& b, const Sizes& sizes) {
  if (a.dtype != b.dtype || a.row_stride != b.row_stride || a.row_stride <= 0) return false;
  if (sizes.batch > 1 && (a.batch_stride != b.batch_stride || a.batch_stride % a.row_stride != 0)) {
    return false;
  }
  const int64_t stride = a.row_stride * item_bytes(a.dtype);
  const auto difference = static_cast<int64_t>(reinterpret_cast<uintptr_t>(a.data) -
                                               reinterpret_cast<uintptr_t>(b.data));
  const int64_t shift = ((difference % stride) + stride) % stride;
  const int64_t width = sizes.cols * item_bytes(a.dtype);
  return shift >= width && shift + width <= stride;
}

bool share_memory(const bridge_array& a, const Sizes& a_sizes, const bridge_array& b,
                  const Sizes& b_sizes) {
  const Extent first = extent_of(a, a_sizes), second = extent_of(b, b_sizes);
  return first.first < second.end && second.first < first.end;
}

// Every element of the array at its own address (sufficient, and true of every array that one
// allocation and slicing can make).
bool is_injective(const bridge_array& array, const Sizes& sizes) {
  const int64_t row = array.row_stride < 0 ? -array.row_stride : array.row_stride;
  const int64_t batch = array.batch_stride < 0 ? -array.batch_stride : array.batch_stride;
  if (sizes.rows > 1 && row < sizes.cols) return false;
  if (sizes.batch <= 1) return true;
  if (batch >= (sizes.rows - 1) * row + sizes.cols) return true;
  return row >= (sizes.batch - 1) * batch + sizes.cols && batch >= sizes.cols;
}

}  // namespace

CallError check_overlap(const bridge_bias_gelu& call) {
  const Sizes full{call.batch, call.rows, call.cols}, row{call.batch, 1, call.cols};
  if (call.batch == 0 || call.rows == 0 || call.cols == 0) return {};
  const bridge_array& out = call.output.full;
  const bridge_array& sums = call.output.row;
  if (out.data != nullptr && !is_injective(out, full)) {
    return {"the output has elements that share memory with each other"};
  }
  if (sums.data != nullptr && !is_injective(sums, row)) {
    return {"the column-sum output has elements that share memory with each other"};
  }
  for (int32_t i = -1; i < call.factors; ++i) {
    const bridge_pair& pair = i < 0 ? call.input : call.factor[i];
    if (out.data != nullptr && pair.full.data != nullptr &&
        share_memory(out, full, pair.full, full) && !identical(out, pair.full, full) &&
        !interleaved(out, pair.full, full)) {
      return {"the output overlaps an operand in memory without being the same array"};
    }
    if (out.data != nullptr && pair.row.data != nullptr && share_memory(out, full, pair.row, row)) {
      return {"the output overlaps a row vector in memory"};
    }
    if (sums.data != nullptr &&
        ((pair.full.data != nullptr && share_memory(sums, row, pair.full, full)) ||
         (pair.row.data != nullptr && share_memory(sums, row, pair.row, row)))) {
      return {"the column-sum output overlaps an operand in memory"};
    }
  }
  if (out.data != nullptr && sums.data != nullptr && share_memory(out, full, sums, row)) {
    return {"the two outputs overlap in memory"};
  }
  return {};
}

}  // namespace bridge::python
