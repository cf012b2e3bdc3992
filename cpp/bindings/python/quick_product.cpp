#include "bindings/python/quick_product.h"

#include <algorithm>
#include <cstdint>

#include "bindings/calls/product_call.h"
#include "bindings/python/handles.h"
#include "bindings/python/openmp.h"

namespace bridge::bindings {
namespace {

constexpr size_t kCount = 3;                                 // a, b and bias
constexpr size_t kA = 0, kB = 1, kBias = 2, kNone = kCount;  // positions

// The bits of `flags`.
constexpr long kTransposedA = 1, kTransposedB = 2, kSkipsZeros = 4, kUnobserved = 8, kMatrix = 16;

bool can_be_read(const Operand& operand) {
  const auto address = reinterpret_cast<uintptr_t>(operand.data);
  return is_floating(operand.dtype) && operand.device == Device::cpu &&
         address % static_cast<uintptr_t>(element_bytes(operand.dtype)) == 0;
}

// Returns the position of an operand with the dtype to which all promote, or kNone.
size_t of_promoted_dtype(const Operand* operands) {
  size_t widest = kA;
  for (size_t i = kA; i < kCount; ++i) {
    if (operands[i].present &&
        element_bytes(operands[i].dtype) > element_bytes(operands[widest].dtype))
      widest = i;
  }
  const int32_t dtype = operands[widest].dtype;
  for (size_t i = kA; i < kCount; ++i) {
    const bool is_as_wide =
        operands[i].present && element_bytes(operands[i].dtype) == element_bytes(dtype);
    if (is_as_wide && operands[i].dtype != dtype) return kNone;  // float16 with bfloat16
  }
  return widest;
}

// The operands and the result with as many dimensions of batches each.
struct Shaped {
  ProductArguments given;
  int64_t sizes[kMostDimensions];           // of the result
  int64_t rows_of_a[2], rows_of_result[2];  // if all batches are rows of one product
  Operand result;                           // its shape for the caller

  // Returns false if the operands do not fit each other, or fit in a way that is not ordinary.
  bool set(const Operand* operands, long flags) {
    const Operand &a = operands[kA], &b = operands[kB], &bias = operands[kBias];
    given.a = a;
    given.b = b;
    given.bias = bias;
    given.is_a_transposed = (flags & kTransposedA) != 0;
    given.is_b_transposed = (flags & kTransposedB) != 0;
    given.skips_zeros = (flags & kSkipsZeros) != 0;
    if (a.ndim < 2 || b.ndim < 2 || a.ndim > kMostDimensions) return false;
    if ((flags & kMatrix) != 0 && b.ndim != 2) return false;
    if (bias.present && bias.ndim != 1) return false;
    const bool joins = b.ndim == 2 && a.ndim > 2;
    if (joins ? given.is_a_transposed || !is_compact(a) : a.ndim != b.ndim) return false;
    for (int32_t d = 0; d < a.ndim - 2; ++d) {
      const int64_t of_a = a.shape[d], of_b = joins ? 1 : b.shape[d];
      if (of_a != of_b && of_a != 1 && of_b != 1) return false;
      sizes[d] = of_a == 1 ? of_b : of_a;
    }
    const int32_t row = a.ndim - 2, col = a.ndim - 1;
    sizes[row] = a.shape[given.is_a_transposed ? col : row];
    sizes[col] = b.shape[given.is_b_transposed ? b.ndim - 2 : b.ndim - 1];
    result.present = true;
    result.ndim = a.ndim;
    result.shape = sizes;
    if (!joins) return true;
    rows_of_a[0] = 1;
    for (int32_t d = 0; d <= row; ++d) rows_of_a[0] *= sizes[d];
    rows_of_a[1] = a.shape[col];
    rows_of_result[0] = rows_of_a[0];
    rows_of_result[1] = sizes[col];
    given.a.ndim = 2;
    given.a.shape = rows_of_a;
    given.a.strides = nullptr;
    return true;
  }
};

// Runs the call. Returns null, with or without a Python exception, if it is not an ordinary one;
// then nothing has been written that anybody sees.
PyObject* computed(const Given& given, long flags, PyObject* dtype) {
  const Operand* operands = given.operands();
  for (size_t i = kA; i < kCount; ++i) {
    if (!operands[i].present) {
      if (i != kBias) return nullptr;
    } else if (!can_be_read(operands[i]) || !given.holds_its_values(i)) {
      return nullptr;
    }
  }
  size_t like = of_promoted_dtype(operands);
  Shaped shaped;
  Operand& result = shaped.result;
  PyObject* new_dtype = nullptr;
  if (dtype == Py_None) {
    if (like == kNone) return nullptr;
    result.dtype = operands[like].dtype;
  } else {
    result.dtype = static_cast<int32_t>(PyLong_AsLong(PyTuple_GetItem(dtype, 0)));
    new_dtype = PyTuple_GetItem(dtype, 1);
    if (PyErr_Occurred()) return nullptr;
    like = kA;
  }
  if (!shaped.set(operands, flags)) return nullptr;
  Fresh results(given);
  if (!results.add(given.handle(like), false, new_dtype, &result)) return nullptr;
  shaped.given.c = result;
  if (shaped.given.a.ndim < result.ndim) {
    shaped.given.c.ndim = 2;
    shaped.given.c.shape = shaped.rows_of_result;
  }
  bridge_product call;
  CallError error;
  if (!bind_product(shaped.given, &call, &error)) return nullptr;
  const double work = static_cast<double>(elements_of(result)) * static_cast<double>(call.k);
  const bool is_large = work >= kProductReleasesFrom;
  const long threads = is_large ? ask_number(given.frontend().get_num_threads) : 1;
  if (threads < 1) return nullptr;
  const auto run = [&](const bridge_executor* executor) {
    return bridge_product_cpu(&call, executor);
  };
  if (on_threads(is_large, threads, run) != BRIDGE_OK) return nullptr;
  PyObject* tuple = results.as_tuple();
  if (tuple == nullptr) return nullptr;
  PyObject* only = Py_NewRef(PyTuple_GetItem(tuple, 0));
  Py_DECREF(tuple);
  return only;
}

constexpr const char* kQuickProduct = "quick_product(frontend, a, b, bias, flags, dtype)";

PyObject* quick_product(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  Frontend frontend;
  if (count != 6 || (arguments[5] != Py_None && !PyTuple_Check(arguments[5])))
    return PyErr_Format(PyExc_TypeError, "expected %s", kQuickProduct);
  const long flags = PyLong_AsLong(arguments[4]);
  if (PyErr_Occurred() || !read_frontend(arguments[0], &frontend)) return nullptr;
  PyObject* const* const objects = arguments + 1;
  const Watch watch =
      (flags & kUnobserved) != 0 ? Watch::nothing : who_watches(frontend, objects, kCount);
  if (watch == Watch::gradient) Py_RETURN_TRUE;
  if (watch == Watch::nothing) {
    Given given(frontend);
    if (given.read(objects, kCount)) {
      if (PyObject* result = computed(given, flags, arguments[5])) return result;
    }
  }
  PyErr_Clear();
  Py_RETURN_NONE;
}

PyMethodDef kFunctions[] = {
    {"quick_product", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(quick_product)),
     METH_FASTCALL, kQuickProduct},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_quick_product(PyObject* module) { return PyModule_AddFunctions(module, kFunctions) == 0; }

}  // namespace bridge::bindings
