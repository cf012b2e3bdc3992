// What softmax.cpp calls, tables for each instruction set.
#ifndef BRIDGE_OPS_SOFTMAX_KERNEL_H_
#define BRIDGE_OPS_SOFTMAX_KERNEL_H_

#include <bridge/bridge.h>
#include <stdint.h>

#include "cpu/isa.h"
#include "math/softmax.h"

namespace bridge {

// An operand from the first row of a run on.
struct RunOperand {
  char* data;
  int64_t row_bytes;  // from one row to the next
};

// Rows one after another, equally far apart in every operand.
struct Run {
  int64_t rows;
  int64_t cols;
  // How many columns of the first row the causal rule leaves visible, perhaps below 0 or above
  // cols, and how many more of each next row: 1, or 0 without the rule.
  int64_t visible;
  int64_t visible_step;
  bool streams;  // the output is written past the caches
};

struct SoftmaxRun : Run {
  math::SoftmaxScale<float> scale;  // of the dtype's arithmetic
  math::SoftmaxScale<double> scale_double;
  RunOperand x;
  RunOperand mask;   // data is null without one
  bool mask_is_row;  // one byte for a whole row
  RunOperand output;
  // Room for buffered_cols elements of the arithmetic type, 64-byte aligned; a row longer than that
  // is computed from memory twice.
  void* buffer;
  int64_t buffered_cols;
};

struct SoftmaxDerivativeRun : Run {
  int32_t terms;
  double scale;
  RunOperand u, v, w;  // w.data is null where w is u
  RunOperand output;
};

struct SoftmaxKernels {
  void (*of[4])(const SoftmaxRun& run);  // [dtype]
};

struct SoftmaxDerivativeKernels {
  // [dtype]
  void (*jacobian[4])(const SoftmaxDerivativeRun& run);    // w.data is null
  void (*derivative[4])(const SoftmaxDerivativeRun& run);  // it is not
};

BRIDGE_DECLARE_PER_ISA(SoftmaxKernels, softmax_kernels)
BRIDGE_DECLARE_PER_ISA(SoftmaxDerivativeKernels, softmax_derivative_kernels)

}  // namespace bridge

#endif  // BRIDGE_OPS_SOFTMAX_KERNEL_H_
