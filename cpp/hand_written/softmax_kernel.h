// The kernels of softmax and its Jacobian on a run of rows, tables for each instruction set.
#ifndef BRIDGE_HAND_WRITTEN_SOFTMAX_KERNEL_H_
#define BRIDGE_HAND_WRITTEN_SOFTMAX_KERNEL_H_

#include <bridge/bridge.h>
#include <stdint.h>

#include "cpu/isa.h"
#include "hand_written/run.h"
#include "math/softmax.h"

namespace bridge {

struct SoftmaxRun : Run {
  math::SoftmaxScale<float> scale;  // for the dtype's arithmetic
  math::SoftmaxScale<double> scale_double;
  RunOperand x;
  RunOperand mask;   // data is null without one
  bool mask_is_row;  // one byte for a whole row
  bool fetches;      // the operands of the next row are prefetched
  RunOperand output;
  // Memory for buffered_cols elements of the arithmetic type, 64-byte aligned. A longer row is read
  // twice.
  void* buffer;
  int64_t buffered_cols;
};

struct JacobianRun : Run {
  double scale;
  RunOperand u, v;
  RunOperand output;
};

struct SoftmaxKernels {
  void (*of[4])(const SoftmaxRun& run);  // [dtype]
};

struct JacobianKernels {
  void (*of[4])(const JacobianRun& run);  // [dtype]
};

BRIDGE_DECLARE_PER_ISA(SoftmaxKernels, softmax_kernels)
BRIDGE_DECLARE_PER_ISA(JacobianKernels, jacobian_kernels)

}  // namespace bridge

#endif  // BRIDGE_HAND_WRITTEN_SOFTMAX_KERNEL_H_
