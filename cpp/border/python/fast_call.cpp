#include "border/python/fast_call.h"

#include <algorithm>

#include "border/python/kept_tensor.h"
#include "border/python/python_call.h"
#include "border/python/tensors.h"

namespace bridge::border {
namespace {

PyObject* kRecord;

// Calls on fewer elements run in the calling thread, whatever the thread count.
constexpr int64_t kFewElements = 1 << 14;

// Whether an operand lies in memory row-major and without gaps.
bool is_compact(const Operand& operand) {
  int64_t elements = 1;
  for (int32_t i = operand.ndim - 1; i >= 0; --i) {
    if (operand.shape[i] != 1 && operand.strides != nullptr && operand.strides[i] != elements) {
      return false;
    }
    elements *= operand.shape[i];
  }
  return true;
}

// Whether operand `i` is a number that the kernels may take for rows: to add a bias to it is an
// error, which they do not know. Programs hold all operands but the first against their roles.
bool is_doubtful(const Op& op, const Operand& operand, size_t i) {
  return operand.ndim == 0 && is_floating(operand.dtype) && (i == 0 || !has_code(op));
}

// Whether the kernels find the values of a tensor where they look for them. Masks are not asked
// whether their negative bit is set: what hides an element hides it with either sign.
bool is_plain(const Frontend& frontend, const Operand& operand, PyObject* tensor) {
  return is_compact(operand) &&
         (operand.dtype == kBool || operand.dtype == kUint8 || holds_its_values(frontend, tensor));
}

int64_t elements_of(const Operand& operand) {
  int64_t elements = 1;
  for (int32_t i = 0; i < operand.ndim; ++i) elements *= operand.shape[i];
  return elements;
}

// Tells the plan of a variant with code before its first call on a device, -1 being the CPU, so
// that it can have that compiled. Devices from 62 on are told of again with every call.
void meet(const Variant& variant, int32_t device) {
  const uint64_t bit = device < 62 ? uint64_t{1} << (device + 1) : 0;
  if (variant.bytes == nullptr || (variant.met & bit) != 0) return;
  variant.met |= bit;
  PyObject* answer = PyObject_CallMethod(variant.plan, "met", "i", static_cast<int>(device));
  if (answer == nullptr) PyErr_Clear();  // the call does not depend on it
  Py_XDECREF(answer);
}

// Operands of an ordinary call: plain, of dtypes that a variant takes, on the current device.
// nullptr if they are not.
const Variant* find_variant(const Kernel& self, const Operand* operands, PyObject* const* objects,
                            size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (!operands[i].present) continue;
    if (is_doubtful(*self.op, operands[i], i)) return nullptr;
    if (!is_plain(self.frontend, operands[i], objects[i])) return nullptr;
  }
  for (const Variant& variant : *self.variants) {
    if (variant.operand_count != count) continue;
    size_t same = 0;
    while (same < count &&
           (operands[same].present ? operands[same].dtype : kUnwanted) == variant.dtypes[same]) {
      ++same;
    }
    if (same < count) continue;
    const bool on_cuda = operands[0].device != Device::cpu;
    PyObject* ask = self.frontend.current_device;
    if (on_cuda && (ask == Py_None || ask_number(ask) != operands[0].device_index)) return nullptr;
    meet(variant, on_cuda ? operands[0].device_index : -1);  // the others of the list may move then
    return &variant;
  }
  return nullptr;
}

// Runs the kernel into results that are there; the outcome as run() has it.
int run_into(const Kernel& self, const Variant& variant, Tensors<kMaxOperands>& operands,
             const Operand* results, bool fresh, PyObject* first) {
  // The thread count is asked for where it can matter.
  const long threads = elements_of(operands.operands()[0]) < kFewElements
                           ? 1
                           : ask_number(self.frontend.get_num_threads);
  if (threads < 1) return kRaised;
  return run({*self.op,
              {operands.operands(), operands.size(), results, variant.result_count,
               variant.attributes, self.op->counts.attributes, fresh, variant.code},
              static_cast<int32_t>(threads),
              operands.stream(0),
              self.frontend.allocate,
              first});
}

// Describes a result that is like no operand, after the first; its sizes are written to `shape`.
void describe_new(const Made& made, int64_t* shape, Operand* output) {
  const int32_t last = output->ndim - 1;
  const int64_t columns = output->shape[last] * made.columns / 2;
  output->dtype = made.dtype_code;
  output->ndim = std::min(made.leading, last);
  std::copy(output->shape, output->shape + output->ndim, shape);
  if (made.columns > 0) shape[output->ndim++] = columns;
  output->shape = shape;
}

// Memory for it, on the device of `first`. Sizes one by one cost half of what they cost in a tuple,
// but for none of them.
PyObject* make_new(const Frontend& frontend, const Operand& output, PyObject* first,
                   PyObject* dtype) {
  PyObject* arguments[kMostDimensions + 2] = {first};
  size_t count = 1;
  bool made_sizes = true;
  if (output.ndim == 0) made_sizes = (arguments[count++] = PyTuple_New(0)) != nullptr;
  for (int32_t d = 0; d < output.ndim; ++d) {
    arguments[count++] = PyLong_FromLongLong(output.shape[d]);
    made_sizes = arguments[count - 1] != nullptr && made_sizes;
  }
  arguments[count] = dtype;
  PyObject* keywords = dtype == nullptr ? nullptr : frontend.dtype_keyword;
  PyObject* tensor = nullptr;
  if (made_sizes) tensor = PyObject_Vectorcall(frontend.new_empty, arguments, count, keywords);
  for (size_t i = 1; i < count; ++i) Py_XDECREF(arguments[i]);
  return tensor;
}

// A result, which *output then describes; None where it is not wanted. `example` describes the
// tensor `object` that it is like, or the first operand.
PyObject* make(const Frontend& frontend, const Made& made, const Operand& example, PyObject* object,
               int64_t* shape, Operand* output) {
  if (made.like == kUnwanted) return Py_NewRef(Py_None);
  // Laid out as the example, which is compact: but for its memory nothing is new.
  *output = example;
  output->strides = nullptr;
  if (made.like == kLikeNone) describe_new(made, shape, output);
  // A profiler of memory sees what torch allocates.
  const bool is_large = elements_of(*output) >= kFewElements && !is_profiled(frontend);
  PyObject* result = is_large ? make_kept(object, output) : nullptr;
  if (result != nullptr) return result;
  PyObject* dtype = output->dtype == example.dtype ? nullptr : made.dtype;
  if (const Lent* lent = lent_by_torch()) {
    return lent->make_empty(object, output->shape, output->ndim, dtype, &output->data);
  }
  if (made.like == kLikeNone) {
    result = make_new(frontend, *output, object, dtype);
  } else {
    result = PyObject_CallOneArg(frontend.empty_like, object);
  }
  if (result != nullptr && !find_memory(frontend, result, &output->data)) Py_CLEAR(result);
  return result;
}

// Memory for the wanted results, then the kernel. nullptr where that cannot be done. While torch
// allocates other threads run, and may add variants.
PyObject* compute(const Kernel& self, const Variant& variant, Tensors<kMaxOperands>& operands,
                  PyObject* const* objects) {
  PyObject* results = PyTuple_New(static_cast<Py_ssize_t>(variant.result_count));
  if (results == nullptr) return nullptr;
  AbsentOperands<kMaxResults> outputs(variant.result_count);
  int64_t shapes[kMaxResults][kMostDimensions];
  bool made = true;
  for (size_t i = 0; made && i < variant.result_count; ++i) {
    const Made& own = variant.results[i];
    const size_t like = own.like < 0 ? 0 : static_cast<size_t>(own.like);
    const bool of_operand = like < variant.operand_count;
    const size_t number = of_operand ? like : like - variant.operand_count;
    PyObject* object = of_operand ? objects[number] : PyTuple_GET_ITEM(results, number);
    const Operand& example = of_operand ? operands.operands()[number] : outputs[number];
    PyObject* result = make(self.frontend, own, example, object, shapes[i], &outputs[i]);
    made = result != nullptr;
    PyTuple_SET_ITEM(results, static_cast<Py_ssize_t>(i), result);
  }
  if (made && run_into(self, variant, operands, outputs.data(), true, objects[0]) == kDone) {
    return results;
  }
  Py_DECREF(results);
  return nullptr;
}

// Lets autograd record the call; its results as a tuple with None for the unwanted. A program has
// no absent operands.
PyObject* differentiate(const Variant& variant, PyObject* const* objects, size_t count) {
  PyObject* arguments[kMaxOperands + 1] = {variant.plan};
  size_t given = 1;
  for (size_t i = 0; i < count; ++i) {
    if (variant.bytes == nullptr || objects[i] != Py_None) arguments[given++] = objects[i];
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

// Whether `out` can take the only wanted result of the variant, which then stands in `results`.
bool place_only_result(const Variant& variant, const Operand* operands, const Operand& out,
                       Operand* results) {
  size_t wanted = 0;
  for (size_t i = 0; i < variant.result_count; ++i) {
    const int like = variant.results[i].like;
    if (like == kUnwanted) continue;
    if (like == kLikeNone || static_cast<size_t>(like) >= variant.operand_count ||
        !same_kind(out, operands[like])) {
      return false;
    }
    results[i] = out;
    ++wanted;
  }
  return wanted == 1;
}

}  // namespace

bool prepare_fast_call() {
  kRecord = PyUnicode_InternFromString("record");
  return kRecord != nullptr;
}

PyObject* fast_call(PyObject* object, PyObject* const* objects, size_t flags, PyObject* keywords) {
  const auto& self = *reinterpret_cast<Kernel*>(object);
  const auto count = static_cast<size_t>(PyVectorcall_NARGS(flags));
  PyObject* results = nullptr;
  if (keywords == nullptr && count > 0 && count <= kMaxOperands) {
    const Watch watch = who_watches(self.frontend, objects, count);
    Tensors<kMaxOperands> operands;
    if ((watch == Watch::nothing || watch == Watch::gradient) && operands.read(objects, count)) {
      const Variant* variant = find_variant(self, operands.operands(), objects, count);
      if (variant != nullptr && watch == Watch::gradient) {
        return differentiate(*variant, objects, count);
      }
      if (variant != nullptr) results = compute(self, *variant, operands, objects);
    }
  }
  if (results != nullptr) return results;
  PyErr_Clear();
  Py_RETURN_NONE;
}

PyObject* fast_recorded(PyObject* object, PyObject* const* objects, Py_ssize_t count) {
  const auto& self = *reinterpret_cast<Kernel*>(object);
  const auto size = static_cast<size_t>(count);
  Tensors<kMaxOperands> operands;
  if (count > 0 && size <= kMaxOperands &&
      who_watches(self.frontend, objects, size) == Watch::gradient &&
      operands.read(objects, size)) {
    const Variant* variant = find_variant(self, operands.operands(), objects, size);
    if (variant != nullptr) return Py_NewRef(variant->plan);
  }
  PyErr_Clear();
  Py_RETURN_NONE;
}

PyObject* fast_compute(PyObject* object, PyObject* const* objects, Py_ssize_t count) {
  const auto& self = *reinterpret_cast<Kernel*>(object);
  Tensors<kMaxOperands> operands;
  PyObject* results = nullptr;
  if (count > 0 && operands.read(objects, static_cast<size_t>(count))) {
    const Variant* variant = find_variant(self, operands.operands(), objects, operands.size());
    if (variant != nullptr) results = compute(self, *variant, operands, objects);
  }
  if (results != nullptr) return results;
  PyErr_Clear();
  Py_RETURN_NONE;
}

PyObject* fast_write(PyObject* object, PyObject* const* objects, Py_ssize_t count) {
  const auto& self = *reinterpret_cast<Kernel*>(object);
  bool written = false;
  if (count > 1 && static_cast<size_t>(count) <= kMaxOperands &&
      who_watches(self.frontend, objects, static_cast<size_t>(count)) == Watch::nothing) {
    Tensors<1> out;
    Tensors<kMaxOperands> operands;
    AbsentOperands<kMaxResults> results(kMaxResults);
    if (out.read(objects, 1) && operands.read(objects + 1, static_cast<size_t>(count) - 1)) {
      const Variant* variant =
          find_variant(self, operands.operands(), objects + 1, operands.size());
      written =
          variant != nullptr && is_plain(self.frontend, out.operands()[0], objects[0]) &&
          place_only_result(*variant, operands.operands(), out.operands()[0], results.data()) &&
          run_into(self, *variant, operands, results.data(), false, objects[1]) == kDone;
    }
  }
  PyErr_Clear();
  return PyBool_FromLong(written);
}

}  // namespace bridge::border
