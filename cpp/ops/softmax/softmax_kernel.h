// What softmax.cpp calls, tables for each instruction set.
#ifndef BRIDGE_OPS_SOFTMAX_SOFTMAX_KERNEL_H_
#define BRIDGE_OPS_SOFTMAX_SOFTMAX_KERNEL_H_

#include <bridge/bridge.h>
#include <stdint.h>

#include "cpu/isa.h"
#include "drivers/rows/run.h"
#include "math/softmax.h"

namespace bridge {

struct SoftmaxRun : Run {
  math::SoftmaxScale<float> scale;  // of the dtype's arithmetic
  math::SoftmaxScale<double> scale_double;
  RunOperand x;
  RunOperand mask;   // data is null without one
  bool mask_is_row;  // one byte for a whole row
  bool fetches;      // what the next row needs is asked for ahead
  RunOperand output;
  // Holds buffered_cols elements of the arithmetic type, 64-byte aligned; a row longer than that
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

#endif  // BRIDGE_OPS_SOFTMAX_SOFTMAX_KERNEL_H_
