// Nodes of torch's graph for recorded calls: what torch.autograd.Function does, without Python for
// what is the same in every call; and memory for results. A module of its own, compiled against the
// headers of the torch that runs (bridge/torch/_adapter/nodes.py).

#include <ATen/EmptyTensor.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "border/torch/lent.h"

namespace {

using namespace torch::autograd;

// intrusive_ptr from torch 2.13 on, shared_ptr before.
using NodePointer = decltype(Edge::function);

template <typename T>
decltype(auto) make_node() {
  if constexpr (std::is_same_v<NodePointer, std::shared_ptr<Node>>) {
    return std::shared_ptr<T>(new T, [](T* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<T>();
  }
}

// A backward pass that is one call of a kernel.
struct Step {
  uint64_t bits;
  Py_ssize_t kernel;                 // where it is in the list; -1: it is not
  std::vector<Py_ssize_t> picked;    // its operands, of (*kept, *cotangents, None)
  std::vector<Py_ssize_t> arranged;  // the cotangents of the operands, of its results; -1: none
};

// What is the same in all calls of a plan. The Python objects that belong to it stand in a tuple
// with the capsule that holds it, where the garbage collector sees them.
struct Recorder {
  int64_t number;
  std::string name;
  std::vector<Py_ssize_t> kept;    // of the operands, then the results
  std::vector<Py_ssize_t> wanted;  // of the results: what the call returns
  PyObject* members;               // the tuple, which owns this
  std::deque<Step> steps;          // what is added leaves the others where they are
};
// kKernels is a list: of each step the kernel, and what is called where it answers with None.
enum Member : Py_ssize_t { kCompute, kOtherwise, kLikes, kOnlyStep, kPull, kKernels, kCapsule };

// By number, for compiled autograd, which keeps numbers alone: recorders, and what nodes that are
// there remember of operands (or None). Under the GIL.
std::unordered_map<int64_t, Recorder*> recorders;
std::unordered_map<int64_t, PyObject*> remembered;

// What pybind11 has for it asks for its own state first, which takes longer.
struct Gil {
  Gil() : state(PyGILState_Ensure()) {}
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;
  ~Gil() { PyGILState_Release(state); }
  PyGILState_STATE state;
};

[[noreturn]] void raise() {
  python_error error;
  error.persist();
  throw std::move(error);
}

PyObject* checked(PyObject* object) {
  if (object == nullptr) raise();
  return object;
}

THPObjectPtr wrapped(const variable_list& tensors) {
  THPObjectPtr tuple(checked(PyTuple_New(static_cast<Py_ssize_t>(tensors.size()))));
  for (size_t i = 0; i < tensors.size(); ++i) {
    PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i),
                     checked(THPVariable_Wrap(tensors[i])));
  }
  return tuple;
}

// An operand or a result; None is no tensor.
at::Tensor unwrapped(PyObject* object) {
  if (object == Py_None) return {};
  TORCH_CHECK_TYPE(THPVariable_Check(object), "expected a tensor, got ", Py_TYPE(object)->tp_name);
  return THPVariable_Unpack(object);
}

// The cotangents of the operands that a tuple has, at these places or in order.
variable_list unwrapped(PyObject* tuple, size_t count, const std::vector<Py_ssize_t>* places) {
  TORCH_INTERNAL_ASSERT(PyTuple_Check(tuple));
  const Py_ssize_t size = PyTuple_GET_SIZE(tuple);
  TORCH_INTERNAL_ASSERT(places != nullptr || static_cast<size_t>(size) == count);
  variable_list tensors(count);
  for (size_t i = 0; i < count; ++i) {
    const Py_ssize_t place = places == nullptr ? static_cast<Py_ssize_t>(i) : (*places)[i];
    if (place >= 0 && place < size) tensors[i] = unwrapped(PyTuple_GET_ITEM(tuple, place));
  }
  return tensors;
}

THPObjectPtr flags(uint64_t bits, size_t first, size_t count) {
  THPObjectPtr tuple(checked(PyTuple_New(static_cast<Py_ssize_t>(count))));
  for (size_t i = 0; i < count; ++i) {
    PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i),
                     PyBool_FromLong(static_cast<long>(bits >> (first + i) & 1)));
  }
  return tuple;
}

bool read_numbers(PyObject* tuple, std::vector<Py_ssize_t>* numbers) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i) {
    numbers->push_back(PyLong_AsSsize_t(PyTuple_GET_ITEM(tuple, i)));
  }
  return PyErr_Occurred() == nullptr;
}

// What makes the cotangents that `bits` asks for: first a bit for each operand, then one for each
// cotangent that is given. The list of Python objects may grow while it is asked for.
const Step& step_of(Recorder& recorder, uint64_t bits, size_t count, size_t given) {
  for (const Step& step : recorder.steps) {
    if (step.bits == bits) return step;
  }
  THPObjectPtr wanted = flags(bits, 0, count), cotangents = flags(bits, count, given);
  PyObject* arguments[] = {wanted.get(), cotangents.get()};
  const THPObjectPtr answer(checked(PyObject_Vectorcall(
      PyTuple_GET_ITEM(recorder.members, kOnlyStep), arguments, std::size(arguments), nullptr)));
  Step step{bits, -1, {}, {}};
  PyObject *kernel, *otherwise, *picked, *arranged;
  if (answer.get() != Py_None) {
    PyObject* list = PyTuple_GET_ITEM(recorder.members, kKernels);
    step.kernel = PyList_GET_SIZE(list);
    if (PyArg_ParseTuple(const_cast<PyObject*>(answer.get()), "OOO!O!", &kernel, &otherwise,
                         &PyTuple_Type, &picked, &PyTuple_Type, &arranged) == 0 ||
        !read_numbers(picked, &step.picked) || !read_numbers(arranged, &step.arranged) ||
        PyList_Append(list, kernel) != 0 || PyList_Append(list, otherwise) != 0) {
      raise();
    }
  }
  recorder.steps.push_back(std::move(step));
  return recorder.steps.back();
}

// The cotangents of the operands. Tensors are let go of before what Python had of them: the other
// way round Python's part would outlive its last reference, to be freed once the GIL is given up.
variable_list pull(Recorder& recorder, const AutogradContext& context, size_t count,
                   PyObject* likes, variable_list saved, variable_list cotangents) {
  TORCH_INTERNAL_ASSERT(count + cotangents.size() <= 64);  // MOST_VALUES in nodes.py
  uint64_t bits = 0;
  for (size_t i = 0; i < count; ++i) bits |= uint64_t{context.needs_input_grad(i)} << i;
  for (size_t i = 0; i < cotangents.size(); ++i) {
    bits |= uint64_t{cotangents[i].defined()} << (count + i);
  }
  const Step& step = step_of(recorder, bits, count, cotangents.size());
  THPObjectPtr made;
  if (step.kernel >= 0) {
    const size_t operands = step.picked.size();
    std::vector<THPObjectPtr> held(operands);
    std::vector<PyObject*> given(operands, Py_None);
    for (size_t i = 0; i < operands; ++i) {
      const auto place = static_cast<size_t>(step.picked[i]);
      if (place >= saved.size() + cotangents.size()) continue;
      const at::Tensor& tensor =
          place < saved.size() ? saved[place] : cotangents[place - saved.size()];
      held[i] = checked(THPVariable_Wrap(tensor));
      given[i] = held[i].get();
    }
    PyObject* kernels = PyTuple_GET_ITEM(recorder.members, kKernels);
    made = checked(PyObject_Vectorcall(PyList_GET_ITEM(kernels, step.kernel), given.data(),
                                       operands, nullptr));
    if (made.get() == Py_None) {
      made = checked(PyObject_Vectorcall(PyList_GET_ITEM(kernels, step.kernel + 1), given.data(),
                                         operands, nullptr));
    }
    saved.clear();
    cotangents.clear();
    return unwrapped(made.get(), count, &step.arranged);
  }
  THPObjectPtr kept = wrapped(saved), given = wrapped(cotangents), wanted = flags(bits, 0, count);
  PyObject* arguments[] = {kept.get(), given.get(), wanted.get(), likes};
  made = checked(PyObject_Vectorcall(PyTuple_GET_ITEM(recorder.members, kPull), arguments,
                                     std::size(arguments), nullptr));
  saved.clear();
  cotangents.clear();
  return unwrapped(made.get(), count, nullptr);
}

// What compiled autograd calls: of a node it has what `compiled_args` collects.
struct Rules {
  static constexpr bool is_traceable = false;
  static variable_list backward(AutogradContext* context, const variable_list& cotangents) {
    variable_list saved = context->get_saved_variables();
    const auto number = [&](const char* name) { return context->saved_data.at(name).toInt(); };
    const Gil gil;
    const auto recorder = recorders.find(number("recorder"));
    const auto likes = remembered.find(number("node"));
    TORCH_CHECK(recorder != recorders.end() && likes != remembered.end(),
                "the node of this gradient is gone");
    const THPObjectPtr members(Py_NewRef(recorder->second->members));
    THPObjectPtr held(Py_NewRef(likes->second));
    return pull(*recorder->second, *context, static_cast<size_t>(number("count")), held.get(),
                std::move(saved), cotangents);
  }
};

struct RecordedNode final : CppNode<Rules> {
  Recorder* recorder = nullptr;
  PyObject* likes = nullptr;
  int64_t number = -1;  // in `remembered`; -1: it is not there

  ~RecordedNode() override {
    if (recorder == nullptr || Py_IsInitialized() == 0) return;
    const Gil gil;
    if (number >= 0) remembered.erase(number);
    Py_DECREF(likes);
    Py_DECREF(recorder->members);
  }

  std::string name() const override { return recorder->name; }

  variable_list apply(variable_list&& cotangents) override {
    variable_list kept;
    {
      const std::lock_guard lock(mutex_);
      kept = ctx_.get_saved_variables();
    }
    const Gil gil;
    return pull(*recorder, ctx_, num_outputs(), likes, std::move(kept), std::move(cotangents));
  }

  void compiled_args(CompiledNodeArgs& args) const override {
    auto& self = const_cast<RecordedNode&>(*this);
    if (number < 0) {
      static int64_t numbers = 0;
      const Gil gil;
      self.number = numbers++;
      remembered.emplace(number, likes);
    }
    self.ctx_.saved_data["recorder"] = recorder->number;
    self.ctx_.saved_data["node"] = number;
    self.ctx_.saved_data["count"] = static_cast<int64_t>(num_outputs());
    self.is_variable_input_.assign(num_outputs(), true);
    CppNode<Rules>::compiled_args(args);
  }
};

const char* const kCapsuleName = "bridge.torch.recorder";

void destroy(PyObject* capsule) {
  auto* recorder = static_cast<Recorder*>(PyCapsule_GetPointer(capsule, kCapsuleName));
  recorders.erase(recorder->number);
  delete recorder;
}

Recorder& recorder_of(PyObject* members) {
  return *static_cast<Recorder*>(
      PyCapsule_GetPointer(PyTuple_GET_ITEM(members, kCapsule), kCapsuleName));
}

THPObjectPtr tuple_of(PyObject* const* operands, size_t count) {
  THPObjectPtr tuple(checked(PyTuple_New(static_cast<Py_ssize_t>(count))));
  for (size_t i = 0; i < count; ++i) {
    PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), Py_NewRef(operands[i]));
  }
  return tuple;
}

// The results of the call, of those that are kept too, where nothing records.
THPObjectPtr computed(PyObject* members, PyObject* const* operands, size_t count) {
  const at::AutoGradMode no_grad(false);
  THPObjectPtr results(
      checked(PyObject_Vectorcall(PyTuple_GET_ITEM(members, kCompute), operands, count, nullptr)));
  if (results.get() != Py_None) return results;
  THPObjectPtr all = tuple_of(operands, count);
  return THPObjectPtr(
      checked(PyObject_CallOneArg(PyTuple_GET_ITEM(members, kOtherwise), all.get())));
}

// What the rules are to know of operands that are not kept; None where that is nothing.
THPObjectPtr likes_of(PyObject* members, PyObject* const* operands, size_t count) {
  PyObject* function = PyTuple_GET_ITEM(members, kLikes);
  if (function == Py_None) return THPObjectPtr(Py_NewRef(Py_None));
  THPObjectPtr all = tuple_of(operands, count);
  return THPObjectPtr(checked(PyObject_CallOneArg(function, all.get())));
}

// Puts a node behind the wanted results, where an operand has a place in the graph: what outlives
// a transform of torch.func may require a gradient and have none.
void attach(PyObject* members, PyObject* const* operands, PyObject* results, Py_ssize_t count) {
  edge_list edges;
  edges.reserve(static_cast<size_t>(count));
  bool is_recorded = false;
  for (Py_ssize_t i = 0; i < count; ++i) {
    const at::Tensor operand = unwrapped(operands[i]);
    edges.push_back(operand.defined() ? impl::gradient_edge(operand) : Edge());
    is_recorded = is_recorded || edges.back().is_valid();
  }
  if (!is_recorded) return;
  THPObjectPtr likes = likes_of(members, operands, static_cast<size_t>(count));
  Recorder& recorder = recorder_of(members);
  const auto tensor = [&](Py_ssize_t i) {
    return unwrapped(i < count ? operands[i] : PyTuple_GET_ITEM(results, i - count));
  };
  auto node = make_node<RecordedNode>();
  Py_INCREF(members);
  node->recorder = &recorder;
  node->likes = likes.release();
  node->set_ctx_grad_fn(node);
  node->ctx_.set_materialize_grads(false);
  node->set_next_edges(std::move(edges));
  for (const Py_ssize_t i : recorder.wanted) {
    at::Tensor result = tensor(count + i);
    create_gradient_edge(result, node);
  }
  // Now a result that is kept is known for one, and kept without its node, which would keep itself.
  variable_list kept;
  kept.reserve(recorder.kept.size());
  for (const Py_ssize_t i : recorder.kept) kept.push_back(tensor(i));
  node->ctx_.save_for_backward(std::move(kept));
  node->save_variables_to_ctx();
}

// record(*operands): the wanted results, a tensor or a tuple of several, with a node of the graph.
PyObject* record(PyObject* members, PyObject* const* operands, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  THPObjectPtr results = computed(members, operands, static_cast<size_t>(count));
  attach(members, operands, results.get(), count);
  const std::vector<Py_ssize_t>& wanted = recorder_of(members).wanted;
  if (wanted.size() == 1) return Py_NewRef(PyTuple_GET_ITEM(results.get(), wanted[0]));
  THPObjectPtr returned(checked(PyTuple_New(static_cast<Py_ssize_t>(wanted.size()))));
  for (size_t i = 0; i < wanted.size(); ++i) {
    PyTuple_SET_ITEM(returned.get(), static_cast<Py_ssize_t>(i),
                     Py_NewRef(PyTuple_GET_ITEM(results.get(), wanted[i])));
  }
  return returned.release();
  END_HANDLE_TH_ERRORS
}

PyMethodDef kRecord = {"record",
                       reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(record)),
                       METH_FASTCALL, "record(*operands) -> tensor | tuple"};

// recorder(name, kept, wanted, compute, otherwise, likes, only_step, pull) -> record
PyObject* make_recorder(PyObject*, PyObject* arguments) {
  HANDLE_TH_ERRORS
  const char* name;
  PyObject *kept, *wanted, *compute, *otherwise, *likes, *only_step, *pull;
  if (!PyArg_ParseTuple(arguments, "sO!O!OOOOO", &name, &PyTuple_Type, &kept, &PyTuple_Type,
                        &wanted, &compute, &otherwise, &likes, &only_step, &pull)) {
    return nullptr;
  }
  static int64_t numbers = 0;
  auto recorder = std::make_unique<Recorder>(Recorder{numbers++, name, {}, {}, nullptr, {}});
  if (!read_numbers(kept, &recorder->kept) || !read_numbers(wanted, &recorder->wanted)) {
    return nullptr;
  }
  THPObjectPtr capsule(PyCapsule_New(recorder.get(), kCapsuleName, destroy));
  if (capsule.get() == nullptr) return nullptr;
  Recorder* owned = recorder.release();
  recorders.emplace(owned->number, owned);
  THPObjectPtr kernels(PyList_New(0));
  if (kernels.get() == nullptr) return nullptr;
  THPObjectPtr members(
      PyTuple_Pack(7, compute, otherwise, likes, only_step, pull, kernels.get(), capsule.get()));
  if (members.get() == nullptr) return nullptr;
  owned->members = members.get();
  return PyCFunction_New(&kRecord, members.get());
  END_HANDLE_TH_ERRORS
}

PyObject* make_empty(PyObject* like, const int64_t* sizes, int32_t ndim, PyObject* dtype,
                     void** address) {
  try {
    if (!THPVariable_Check(like)) throw std::invalid_argument("expected a tensor");
    const at::Tensor& example = THPVariable_Unpack(like);
    const at::ScalarType type =
        dtype == nullptr ? example.scalar_type() : reinterpret_cast<THPDtype*>(dtype)->scalar_type;
    const at::IntArrayRef shape(sizes, static_cast<size_t>(ndim));
    at::Tensor made;
    if (example.is_cpu()) {
      made = at::detail::empty_cpu(shape, type);
    } else {  // its allocator may wait for a device
      const pybind11::gil_scoped_release released;
      made = at::empty(shape, example.options().dtype(type));
    }
    *address = made.mutable_data_ptr();
    return THPVariable_Wrap(std::move(made));
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
}

bool is_negative(PyObject* tensor) {
  return !THPVariable_Check(tensor) || THPVariable_Unpack(tensor).is_neg();
}

bridge::border::Lent kLent = {make_empty, is_negative};

PyMethodDef kFunctions[] = {
    {"recorder", make_recorder, METH_VARARGS,
     "recorder(name, kept, wanted, compute, otherwise, likes, only_step, pull) -> record"},
    {nullptr, nullptr, 0, nullptr}};
PyModuleDef kModule = {PyModuleDef_HEAD_INIT,
                       "bridge_nodes",
                       nullptr,
                       -1,
                       kFunctions,
                       nullptr,
                       nullptr,
                       nullptr,
                       nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_bridge_nodes();
PyMODINIT_FUNC PyInit_bridge_nodes() {
  THPObjectPtr module(PyModule_Create(&kModule));
  THPObjectPtr capsule(PyCapsule_New(&kLent, bridge::border::kLentName, nullptr));
  if (module.get() == nullptr || capsule.get() == nullptr ||
      PyModule_AddObjectRef(module.get(), "lent", capsule.get()) != 0) {
    return nullptr;
  }
  return module.release();
}
