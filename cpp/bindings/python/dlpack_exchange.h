// Conversion of Python objects to operands through DLPack, without a copy and without ownership.
#ifndef BRIDGE_BINDINGS_PYTHON_DLPACK_EXCHANGE_H_
#define BRIDGE_BINDINGS_PYTHON_DLPACK_EXCHANGE_H_

#include <Python.h>

#include <dlpack/dlpack.h>
#include "bindings/calls/operand.h"

namespace bridge::bindings {

constexpr int32_t kMostDimensions = 64;  // of a tensor of torch

// Returns the DLPack exchange table of a tensor type; nullptr if it has none.
const DLPackExchangeAPI* exchange_table(PyTypeObject* type);

// Finds torch's current stream on a device. `type` is a type of torch's tensors. Returns false with
// a Python exception set.
bool find_stream(PyTypeObject* type, int32_t device_index, void** stream);

// Holds the memory of a producer for the length of a call.
class Borrowed {
 public:
  Borrowed() = default;
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  ~Borrowed();

  // Describes `object` in *operand, which must be fresh; None leaves it absent. Returns false with
  // a Python exception set. A producer that has __dlpack_c_exchange_api__ on its type (torch) is
  // read through that table in well under a microsecond; anything else through __dlpack__().
  bool read(PyObject* object, Operand* operand);

  // Torch's current stream on the operand's device; nullptr on the CPU.
  void* stream = nullptr;

 private:
  bool read_by_table(PyObject* object, const DLPackExchangeAPI* table, Operand* operand);
  bool read_by_method(PyObject* object, Operand* operand);
  bool describe_with_stream(const DLTensor& tensor, PyTypeObject* type, Operand* operand);

  PyObject* capsule_ = nullptr;
};

}  // namespace bridge::bindings

#endif  // BRIDGE_BINDINGS_PYTHON_DLPACK_EXCHANGE_H_
