// What the driver of bias_gelu (bias_gelu.cpp) asks of the code that is compiled once for each
// instruction set (bias_gelu_kernel.cpp): one block of rows and columns in one thread.
#ifndef BRIDGE_OPS_BIAS_GELU_KERNEL_H_
#define BRIDGE_OPS_BIAS_GELU_KERNEL_H_

#include <bridge/bridge.h>
#include <stdint.h>

#include "cpu/isa.h"

namespace bridge {

// The array of an operand from the block's first element on; data is null where it is absent.
struct BiasGeluArray {
  char* data;
  int64_t row_bytes;  // From one row to the next.
  int32_t dtype;
};

struct BiasGeluPair {
  BiasGeluArray full;
  BiasGeluArray row;
};

struct BiasGeluBlock {
  int32_t order;
  int32_t factors;
  int64_t rows;
  int64_t cols;
  // The row vectors have this many elements and repeat along the columns: several short rows that
  // lie next to one another are computed as one. Equal to cols otherwise, and with column sums.
  int64_t row_period;
  BiasGeluPair input;
  BiasGeluPair factor[BRIDGE_MAX_FACTORS];
  BiasGeluArray output;
  // Column sums over the rows of the block, which begin at a multiple of 2^n chunks and are at most
  // 2^n chunks: either unrounded in the arithmetic type (a node of the tree), or rounded into
  // output_row, or not wanted (both null).
  void* sums;
  BiasGeluArray output_row;
  // The operands are larger than the caches of a core.
  bool prefetch;
};

// At most so many chunks in a block with column sums, so that the levels of the tree stay in cache.
constexpr int64_t kBlockChunks = 32;

using BiasGeluFunction = void (*)(const BiasGeluBlock& block);

// The forms of call that have a loop of their own, with every operand of one dtype: forward, and
// one or two derivatives of it with a full factor for each, with and without column sums.
enum BiasGeluShape : int32_t {
  kForward,
  kFirst,
  kFirstSums,
  kSecond,
  kSecondSums,
  kBiasGeluShapes
};

struct BiasGeluKernels {
  // [shape][dtype][form]; null where there is none.
  BiasGeluFunction fused[kBiasGeluShapes][4][3];
  // [arithmetic][form]: every call.
  BiasGeluFunction tiled[3][3];
  // [arithmetic]: adds the nodes of one level, count vectors of cols values one stride of elements
  // apart, up to the root of the tree, and rounds it into output_row. Overwrites the nodes.
  void (*add_nodes[3])(void* nodes, int64_t count, int64_t stride, int64_t cols,
                       const BiasGeluArray& output_row);
};

BRIDGE_DECLARE_PER_ISA(BiasGeluKernels, bias_gelu_kernels)

}  // namespace bridge

#endif  // BRIDGE_OPS_BIAS_GELU_KERNEL_H_
