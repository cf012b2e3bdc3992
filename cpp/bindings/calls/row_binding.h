// Binding of arrays with rows along the leading dimensions: the operands of softmax and its
// derivative. A mask broadcasts to them from the right.
#ifndef BRIDGE_BINDINGS_CALLS_ROW_BINDING_H_
#define BRIDGE_BINDINGS_CALLS_ROW_BINDING_H_

#include <cstring>

#include "bindings/calls/op.h"
#include "bindings/calls/overlap.h"

namespace bridge::bindings {

constexpr size_t kMaxRowArrays = 4;
// The most dimensions that cannot be merged with each other. An output with more of them, each of
// at least two elements, would not fit into memory.
constexpr int32_t kMaxWalkDims = 40;
constexpr int32_t kMaxLoopDims = kMaxWalkDims - BRIDGE_MAX_DIMS;

// The dimensions beyond the limit of a kernel, which is called once for each of their indices.
struct RowLoops {
  int32_t dims = 0;
  int32_t arrays;
  int64_t size[kMaxLoopDims];  // here and below: innermost first
  char* data[kMaxRowArrays];
  int64_t bytes[kMaxRowArrays][kMaxLoopDims];
};

// A call with such loops. kPlace sets the addresses of the arrays in a C struct, in the order in
// which they were bound.
template <class C, void (*kPlace)(C*, char* const*)>
struct LoopedCall {
  C call;
  RowLoops loops;
};

template <class C, void (*kPlace)(C*, char* const*), class Kernel>
bridge_status for_each_kernel_call(const LoopedCall<C, kPlace>& bound, Kernel kernel) {
  const RowLoops& loops = bound.loops;
  if (loops.dims == 0) return kernel(&bound.call);
  C call = bound.call;
  char* data[kMaxRowArrays];
  std::memcpy(data, loops.data, sizeof data);
  int64_t at[kMaxLoopDims] = {};
  for (;;) {
    kPlace(&call, data);
    const bridge_status status = kernel(&call);
    if (status != BRIDGE_OK) return status;
    int32_t dim = 0;
    while (++at[dim] == loops.size[dim]) {
      for (int32_t i = 0; i < loops.arrays; ++i) {
        if (data[i] != nullptr) data[i] -= (loops.size[dim] - 1) * loops.bytes[i][dim];
      }
      at[dim] = 0;
      if (++dim == loops.dims) return BRIDGE_OK;
    }
    for (int32_t i = 0; i < loops.arrays; ++i) {
      if (data[i] != nullptr) data[i] += loops.bytes[i][dim];
    }
  }
}

struct RowArray {
  enum Kind { operand, mask, output } kind;
  const char* name;
  const Operand& array;
};

// Merges the leading dimensions of all arrays together, into as few as possible.
class RowBinding {
 public:
  // Binds the arrays. The first array gives shape, dtype and device; it must be present, and so
  // must the output, which is the last array. error->unreadable is an index into `arrays`. `fresh`:
  // no other array can share memory with the output.
  bool bind(const RowArray* arrays, size_t count, bool causal, bool fresh, CallError* error);

  void write(bridge_row_space* space, RowLoops* loops) const;
  int32_t dtype() const { return arrays_[0].array.dtype; }
  // Returns nullptr for an absent array.
  char* data(size_t array) const { return data_[array]; }
  int64_t col_stride(size_t array) const { return col_stride_[array]; }
  void write_strides(size_t array, int64_t stride[BRIDGE_MAX_DIMS]) const;

 private:
  bool check(size_t array, CallError* error) const;
  bool check_first(CallError* error) const;
  bool read_columns(size_t array, CallError* error);
  bool walk(int32_t leading, CallError* error);
  bool check_memory(CallError* error) const;

  const RowArray* arrays_;
  size_t count_;
  bool causal_;
  int64_t cols_;
  // Merged dimensions, innermost first.
  int32_t dims_ = 0;
  int64_t size_[kMaxWalkDims];
  int64_t stride_[kMaxRowArrays][kMaxWalkDims];
  int64_t col_stride_[kMaxRowArrays];
  char* data_[kMaxRowArrays];
};

}  // namespace bridge::bindings

#endif  // BRIDGE_BINDINGS_CALLS_ROW_BINDING_H_
