// What both front doors (DLPack and XLA FFI) reduce a tensor to before an op looks at it.
#ifndef BRIDGE_PYTHON_OPERAND_H_
#define BRIDGE_PYTHON_OPERAND_H_

#include <cstdint>
#include <string>

#include "bridge/bridge.h"

namespace bridge::python {

enum class Device : int32_t { cpu, cuda };

// A tensor as it came in. Shape and strides belong to the producer and live as long as the call.
struct Operand {
  bool present = false;
  void* data = nullptr;
  int32_t dtype = -1;  // bridge_dtype, or -1: one that the kernels do not compute in
  int32_t ndim = 0;
  const int64_t* shape = nullptr;
  const int64_t* strides = nullptr;  // in elements; nullptr: row-major and compact
  Device device = Device::cpu;
  int32_t device_index = 0;
  bool read_only = false;
};

// Why a call cannot be made. `unreadable` is the position of the operand whose strides the kernels
// cannot walk, which the caller may copy and try again; -1 for errors that a copy does not mend.
struct CallError {
  std::string message;
  int32_t unreadable = -1;
  explicit operator bool() const { return !message.empty(); }
};

// Shape in brackets, as Python prints a list: "[2, 3]".
std::string describe_shape(const Operand& operand);

// Reads `operand` as [batch, rows, cols] (its first batch_ndim dimensions, the middle, the last)
// with adjacent columns. False when the strides of a group do not collapse into one.
bool collapse(const Operand& operand, int32_t batch_ndim, bridge_array* array, int64_t sizes[3]);

}  // namespace bridge::python

#endif  // BRIDGE_PYTHON_OPERAND_H_
