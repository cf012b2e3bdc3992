// What the driver of bias_dropout_add (bias_dropout_add.cpp) asks of the code that is compiled once
// for each instruction set (bias_dropout_add_kernel.cpp): one block of rows and columns in one
// thread.
#ifndef BRIDGE_OPS_BIAS_DROPOUT_ADD_BIAS_DROPOUT_ADD_KERNEL_H_
#define BRIDGE_OPS_BIAS_DROPOUT_ADD_BIAS_DROPOUT_ADD_KERNEL_H_

#include <bridge/bridge.h>
#include <stdint.h>

#include "cpu/isa.h"
#include "ops/bias_dropout_add/bias_dropout_add.h"
#include "walks/columns/block.h"

namespace bridge {

struct BiasDropoutAddBlock : Block {
  BlockPair input;
  BlockArray residual;
  BlockArray output;
  double factor;
  // Read where some elements are kept and some not.
  uint32_t threshold;
  uint64_t seed;
  uint64_t offset;
  uint64_t index;       // that of the block's first element
  uint64_t index_cols;  // from a row of the call to the next
  uint64_t index_step;  // from a row of the block to the next

  template <class Visit>
  void for_each_full(const Visit& visit) {
    visit(input.full);
    visit(residual);
    visit(output);
  }
  void skip_rows(int64_t rows) { index += static_cast<uint64_t>(rows) * index_cols; }
  void fold_rows(int64_t rows) { index_step *= static_cast<uint64_t>(rows); }
};

using BiasDropoutAddFunction = void (*)(const BiasDropoutAddBlock& block);

struct BiasDropoutAddKernels {
  // [dtype][keep], every full operand of that dtype: without and with a residual, and with column
  // sums; null where there is none.
  BiasDropoutAddFunction plain[4][kKeeps];
  BiasDropoutAddFunction residual[4][kKeeps];
  BiasDropoutAddFunction sums[4][kKeeps];
  // [is_double][keep]: every call.
  BiasDropoutAddFunction tiled[2][kKeeps];
  AddNodes add_nodes[2];
};

BRIDGE_DECLARE_PER_ISA(BiasDropoutAddKernels, bias_dropout_add_kernels)

}  // namespace bridge

#endif  // BRIDGE_OPS_BIAS_DROPOUT_ADD_BIAS_DROPOUT_ADD_KERNEL_H_
