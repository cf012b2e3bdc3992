#include "bindings/python/fast_call.h"

#include <algorithm>

#include "bindings/python/handles.h"
#include "bindings/python/kernel_type.h"
#include "bindings/python/python_call.h"

namespace bridge::bindings {
namespace {

PyObject* kRecord;

// Calls on fewer elements run in the calling thread, whatever the thread count.
constexpr int64_t kFewElements = 1 << 14;

// Returns true if the first operand is a scalar that the kernels would take for rows. For instance,
// a bias added to a scalar is an error, and the kernels do not detect it. Programs check the roles
// of the other operands.
bool is_doubtful(const Operand& first) { return first.ndim == 0 && is_floating(first.dtype); }

// Calls plan.met(device) before the first call of a variant on a device (-1: the CPU), so that the
// plan can have the program compiled. Devices from 62 on are reported again with every call.
void meet(const Variant& variant, int32_t device) {
  const uint64_t bit = device < 62 ? uint64_t{1} << (device + 1) : 0;
  if ((variant.met & bit) != 0) return;
  variant.met |= bit;
  PyObject* answer = PyObject_CallMethod(variant.plan, "met", "i", static_cast<int>(device));
  if (answer == nullptr) PyErr_Clear();  // the call does not depend on it
  Py_XDECREF(answer);
}

// True if all new results are compact. The kernels read operands of any strides. But torch's Python
// functions give a result the strides of the operand that it is like; memory from C++ is compact
// whatever the operand is.
bool makes_compact_results(const Variant& variant, const Given& given) {
  if (given.table() != nullptr) return true;
  for (size_t i = 0; i < variant.result_count; ++i) {
    const Made& made = variant.results[i];
    if (made.like == kUnwanted) continue;
    const size_t like = made.like < 0 ? 0 : static_cast<size_t>(made.like);
    if (like < variant.operand_count && !is_compact(given.operands()[like])) return false;
  }
  return true;
}

// Returns the variant for an ordinary call: the kernels can read the operands, which are of dtypes
// that a variant takes, and on the current device. Returns nullptr for any other call.
const Variant* find_variant(const Kernel& self, const Given& given) {
  const Operand* operands = given.operands();
  const size_t count = given.size();
  if (operands[0].present && is_doubtful(operands[0])) return nullptr;
  for (size_t i = 0; i < count; ++i) {
    if (!operands[i].present) continue;
    if (!given.holds_its_values(i)) return nullptr;
  }
  for (const Variant& variant : *self.variants) {
    if (variant.operand_count != count) continue;
    size_t same = 0;
    while (same < count &&
           (operands[same].present ? operands[same].dtype : kUnwanted) == variant.dtypes[same]) {
      ++same;
    }
    if (same < count) continue;
    if (!makes_compact_results(variant, given)) return nullptr;
    const bool on_cuda = operands[0].device != Device::cpu;
    PyObject* ask = self.frontend.current_device;
    if (on_cuda && (ask == Py_None || ask_number(ask) != operands[0].device_index)) return nullptr;
    meet(variant, on_cuda ? operands[0].device_index : -1);  // Python code, which may add variants
    return &variant;
  }
  return nullptr;
}

const Variant* find_variant(const Kernel& self, PyObject* const* objects, size_t count) {
  Given given(self.frontend);
  return given.read(objects, count) ? find_variant(self, given) : nullptr;
}

// Runs the kernel into existing results. Returns the outcome of run().
int run_into(const Kernel& self, const Variant& variant, const Given& given, const Operand* results,
             bool fresh) {
  // The thread count is read only if it can matter.
  const long threads = elements_of(given.operands()[0]) < kFewElements
                           ? 1
                           : ask_number(self.frontend.get_num_threads);
  void* stream;
  if (threads < 1 || !given.find_stream(&stream)) return kRaised;
  return run({{given.operands(), given.size(), results, variant.result_count, variant.attributes,
               kAttributes, variant.code, fresh},
              static_cast<int32_t>(threads),
              stream,
              self.frontend.allocate,
              given.handle(0),
              given.table()});
}

// Describes a result that is like no operand, after the first one. Writes its sizes to `shape`.
void describe_new(const Made& made, int64_t* shape, Operand* output) {
  const int32_t last = output->ndim - 1;
  const int64_t columns = output->shape[last] * made.columns / 2;
  output->dtype = made.dtype_code;
  output->ndim = std::min(made.leading, last);
  std::copy(output->shape, output->shape + output->ndim, shape);
  if (made.columns > 0) shape[output->ndim++] = columns;
  output->shape = shape;
}

// Allocates the wanted results, then runs the kernel. Returns false if that fails. While torch
// allocates, other threads run and may add variants.
bool compute(const Kernel& self, const Variant& variant, const Given& given, Fresh* results) {
  AbsentOperands<kMaxResults> outputs(variant.result_count);
  int64_t shapes[kMaxResults][kMostDimensions];
  for (size_t i = 0; i < variant.result_count; ++i) {
    const Made& made = variant.results[i];
    if (made.like == kUnwanted) {
      results->add_unwanted();
      continue;
    }
    const size_t like = made.like < 0 ? 0 : static_cast<size_t>(made.like);
    const bool of_operand = like < variant.operand_count;
    const size_t number = of_operand ? like : like - variant.operand_count;
    // The result has the layout of the example, which is compact; only the memory is new.
    const Operand& example = of_operand ? given.operands()[number] : outputs[number];
    outputs[i] = example;
    outputs[i].strides = nullptr;
    if (made.like == kLikeNone) describe_new(made, shapes[i], &outputs[i]);
    PyObject* dtype = outputs[i].dtype == example.dtype ? nullptr : made.dtype;
    const Handle alike = of_operand ? given.handle(number) : results->handle(number);
    if (!results->add(alike, made.like != kLikeNone, dtype, &outputs[i])) return false;
  }
  return run_into(self, variant, given, outputs.data(), true) == kDone;
}

// Lets autograd record the call. Returns the results as a tuple, with None for unwanted ones. The
// plan of a program takes no absent operands.
PyObject* differentiate(const Variant& variant, PyObject* const* objects, size_t count) {
  PyObject* arguments[kMaxOperands + 1] = {variant.plan};
  size_t given = 1;
  for (size_t i = 0; i < count; ++i) {
    if (objects[i] != Py_None) arguments[given++] = objects[i];
  }
  PyObject* outputs = PyObject_VectorcallMethod(kRecord, arguments, given, nullptr);
  if (outputs == nullptr) return nullptr;
  const auto result_count = static_cast<Py_ssize_t>(variant.result_count);
  PyObject* results = PyTuple_New(result_count);
  Py_ssize_t taken = 0;
  for (Py_ssize_t i = 0; results != nullptr && i < result_count; ++i) {
    PyObject* result = Py_None;
    if (variant.results[i].like != kUnwanted) {
      result = PyTuple_Check(outputs) ? PyTuple_GetItem(outputs, taken++) : outputs;
    }
    if (result == nullptr) {
      Py_CLEAR(results);
    } else {
      PyTuple_SET_ITEM(results, i, Py_NewRef(result));
    }
  }
  Py_DECREF(outputs);
  return results;
}

bool same_kind(const Operand& a, const Operand& b) {
  return a.dtype == b.dtype && a.ndim == b.ndim && a.device == b.device &&
         std::equal(a.shape, a.shape + a.ndim, b.shape);
}

// Returns true if the arrays can take the wanted results of the variant, and puts them at their
// places among `results`.
bool place_results(const Variant& variant, const Operand* operands, const Given& out,
                   Operand* results) {
  size_t wanted = 0;
  for (size_t i = 0; i < variant.result_count; ++i) {
    const int like = variant.results[i].like;
    if (like == kUnwanted) continue;
    if (wanted == out.size() || like == kLikeNone ||
        static_cast<size_t>(like) >= variant.operand_count) {
      return false;
    }
    const Operand& place = out.operands()[wanted];
    if (!place.present || !same_kind(place, operands[like]) || !is_compact(place) ||
        !out.holds_its_values(wanted)) {
      return false;
    }
    results[i] = place;
    ++wanted;
  }
  return wanted == out.size();
}

}  // namespace

bool prepare_fast_call() {
  kRecord = PyUnicode_InternFromString("record");
  return kRecord != nullptr;
}

PyObject* fast_call(PyObject* object, PyObject* const* objects, size_t flags, PyObject* keywords) {
  const auto& self = *reinterpret_cast<Kernel*>(object);
  const auto count = static_cast<size_t>(PyVectorcall_NARGS(flags));
  if (keywords == nullptr && count > 0 && count <= kMaxOperands) {
    const Watch watch = who_watches(self.frontend, objects, count);
    if (watch == Watch::gradient) {
      const Variant* variant = find_variant(self, objects, count);
      if (variant != nullptr) return differentiate(*variant, objects, count);
    } else if (watch == Watch::nothing) {
      return fast_compute(object, objects, static_cast<Py_ssize_t>(count));
    }
  }
  PyErr_Clear();
  Py_RETURN_NONE;
}

PyObject* fast_recorded(PyObject* object, PyObject* const* objects, Py_ssize_t count) {
  const auto& self = *reinterpret_cast<Kernel*>(object);
  const auto size = static_cast<size_t>(count);
  if (count > 0 && size <= kMaxOperands &&
      who_watches(self.frontend, objects, size) == Watch::gradient) {
    const Variant* variant = find_variant(self, objects, size);
    if (variant != nullptr) return Py_NewRef(variant->plan);
  }
  PyErr_Clear();
  Py_RETURN_NONE;
}

PyObject* fast_compute(PyObject* object, PyObject* const* objects, Py_ssize_t count) {
  const auto& self = *reinterpret_cast<Kernel*>(object);
  Given given(self.frontend);
  if (count > 0 && given.read(objects, static_cast<size_t>(count))) {
    const Variant* variant = find_variant(self, given);
    Fresh results(given);
    if (variant != nullptr && compute(self, *variant, given, &results)) {
      if (PyObject* tuple = results.as_tuple()) return tuple;
    }
  }
  PyErr_Clear();
  Py_RETURN_NONE;
}

PyObject* fast_write(PyObject* object, PyObject* const* objects, Py_ssize_t count) {
  const auto& self = *reinterpret_cast<Kernel*>(object);
  bool written = false;
  if (count > 1 && static_cast<size_t>(count) <= kMaxOperands && PyTuple_Check(objects[0])) {
    PyObject* places[kMaxResults];
    const auto size = static_cast<size_t>(PyTuple_Size(objects[0]));
    for (size_t i = 0; i < size && i < kMaxResults; ++i) {
      places[i] = PyTuple_GetItem(objects[0], static_cast<Py_ssize_t>(i));
    }
    const auto operand_count = static_cast<size_t>(count) - 1;
    Given out(self.frontend), given(self.frontend);
    AbsentOperands<kMaxResults> results(kMaxResults);
    if (size > 0 && size <= kMaxResults &&
        who_watches(self.frontend, places, size) == Watch::nothing &&
        who_watches(self.frontend, objects + 1, operand_count) == Watch::nothing &&
        out.read(places, size) && given.read(objects + 1, operand_count)) {
      const Variant* variant = find_variant(self, given);
      written = variant != nullptr &&
                place_results(*variant, given.operands(), out, results.data()) &&
                run_into(self, *variant, given, results.data(), false) == kDone;
    }
  }
  PyErr_Clear();
  return PyBool_FromLong(written);
}

int fast_run(PyObject* object, TorchTensor* const* operands, size_t count, bool watched,
             TorchTensor** tensors) {
  if (!is_kernel(object) || count == 0) return -1;
  const auto& self = *reinterpret_cast<Kernel*>(object);
  Given given(self.frontend);
  const bool is_ours =
      !watched || who_watches(self.frontend, *given.table(), operands, count) == Watch::nothing;
  if (is_ours && given.read(operands, count)) {
    const Variant* variant = find_variant(self, given);
    Fresh results(given);
    if (variant != nullptr && compute(self, *variant, given, &results)) {
      return results.hand_on(tensors);
    }
  }
  PyErr_Clear();
  return -1;
}

}  // namespace bridge::bindings
