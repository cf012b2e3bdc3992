// What the driver of bias_gelu (bias_gelu.cpp) asks of the code that is compiled once for each
// instruction set (bias_gelu_kernel.cpp): one block of rows and columns in one thread.
#ifndef BRIDGE_OPS_BIAS_GELU_BIAS_GELU_KERNEL_H_
#define BRIDGE_OPS_BIAS_GELU_BIAS_GELU_KERNEL_H_

#include <bridge/bridge.h>
#include <stdint.h>

#include "cpu/isa.h"
#include "ops/bias_gelu/bias_gelu.h"
#include "walks/columns/block.h"

namespace bridge {

struct BiasGeluBlock : Block {
  int32_t order;
  int32_t factors;
  BlockPair input;
  BlockPair factor[BRIDGE_MAX_FACTORS];
  BlockArray output;

  template <class Visit>
  void for_each_full(const Visit& visit) {
    visit(input.full);
    for (int i = 0; i < factors; ++i) visit(factor[i].full);
    visit(output);
  }
};

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
  BiasGeluFunction tiled[kArithmetics][3];
  // [is_double].
  AddNodes add_nodes[2];
};

BRIDGE_DECLARE_PER_ISA(BiasGeluKernels, bias_gelu_kernels)

}  // namespace bridge

#endif  // BRIDGE_OPS_BIAS_GELU_BIAS_GELU_KERNEL_H_
