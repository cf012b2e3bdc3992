// Python objects to operands through DLPack, without a copy and without owning anything.
#ifndef BRIDGE_BORDER_PYTHON_DLPACK_EXCHANGE_H_
#define BRIDGE_BORDER_PYTHON_DLPACK_EXCHANGE_H_

#include <Python.h>

#include <dlpack/dlpack.h>
#include "border/binding/operand.h"

namespace bridge::border {

constexpr int32_t kMostDimensions = 64;  // of a tensor of torch

// The table by which tensors of a type are exchanged; nullptr where it has none.
const DLPackExchangeAPI* exchange_table(PyTypeObject* type);

// The stream on which torch works on a device now; `type` is one of its tensors'. False with a
// Python exception set.
bool find_stream(PyTypeObject* type, int32_t device_index, void** stream);

// Holds what a producer lent for the length of a call.
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

  // The stream on which torch works on the operand's device now; nullptr on the CPU.
  void* stream = nullptr;

 private:
  bool read_by_table(PyObject* object, const DLPackExchangeAPI* table, Operand* operand);
  bool read_by_method(PyObject* object, Operand* operand);
  bool describe_with_stream(const DLTensor& tensor, PyTypeObject* type, Operand* operand);

  PyObject* capsule_ = nullptr;
};

}  // namespace bridge::border

#endif  // BRIDGE_BORDER_PYTHON_DLPACK_EXCHANGE_H_
