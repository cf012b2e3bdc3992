// Nodes of torch's graph for recorded calls. They do the work of torch.autograd.Function, without
// Python for the parts common to all calls. This is a module of its own, compiled against the
// headers of the running torch (bridge/torch/_adapter/nodes.py). functions.h has its functions for
// bridge._native.

#include <cstdint>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>
#include <vector>

#include "bindings/torch/backward.h"

namespace {

using namespace torch::autograd;
using namespace bridge::bindings::recorded;

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

// The backward function for compiled autograd. It has only the values of a node collected by
// `compiled_args`.
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
  int64_t number = -1;  // key in `remembered`; -1: it is not there

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

// Computes the results of the call, including residuals, without recording.
Results computed(PyObject* members, PyObject* const* operands, size_t count) {
  const at::AutoGradMode no_grad(false);
  Results results;
  Operands given;
  bool are_tensors = true;
  for (size_t i = 0; i < count; ++i) {
    const bool is_tensor = THPVariable_Check(operands[i]);
    are_tensors = are_tensors && (is_tensor || operands[i] == Py_None);
    given.push_back(is_tensor ? &THPVariable_Unpack(operands[i]) : nullptr);
  }
  PyObject* kernel = PyTuple_GET_ITEM(members, kKernel);
  if (are_tensors && run(kernel, given, false, &results)) return results;
  THPObjectPtr all = tuple_of(operands, count);
  THPObjectPtr made(checked(PyObject_CallOneArg(PyTuple_GET_ITEM(members, kOtherwise), all.get())));
  TORCH_CHECK_TYPE(PyTuple_Check(made.get()), "expected a tuple of results");
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(made.get()); ++i) {
    results.push_back(unwrapped(PyTuple_GET_ITEM(made.get(), i)));
  }
  return results;
}

// Returns the facts about operands other than residuals that the derivative rules need; None if
// they need none.
THPObjectPtr likes_of(PyObject* members, PyObject* const* operands, size_t count) {
  PyObject* function = PyTuple_GET_ITEM(members, kLikes);
  if (function == Py_None) return THPObjectPtr(Py_NewRef(Py_None));
  THPObjectPtr all = tuple_of(operands, count);
  return THPObjectPtr(checked(PyObject_CallOneArg(function, all.get())));
}

// Attaches a node to the wanted results, if an operand is in the graph. A tensor that outlives a
// transform of torch.func may require a gradient without being in the graph.
void attach(PyObject* members, PyObject* const* operands, const Results& results,
            Py_ssize_t count) {
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
    return i < count ? unwrapped(operands[i]) : results[static_cast<size_t>(i - count)];
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
  // Saved after the results have their node: a saved result is then known as the node's own, and
  // saved without a reference to the node, which would be a cycle.
  variable_list kept;
  kept.reserve(recorder.kept.size());
  for (const Py_ssize_t i : recorder.kept) kept.push_back(tensor(i));
  node->ctx_.save_for_backward(std::move(kept));
  node->save_variables_to_ctx();
}

// record(*operands): returns the wanted results, a tensor or a tuple of several, with a node of the
// graph.
PyObject* record(PyObject* members, PyObject* const* operands, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  Results results = computed(members, operands, static_cast<size_t>(count));
  attach(members, operands, results, count);
  const std::vector<Py_ssize_t>& wanted = recorder_of(members).wanted;
  if (wanted.size() == 1) return THPVariable_Wrap(std::move(results[wanted[0]]));
  THPObjectPtr returned(checked(PyTuple_New(static_cast<Py_ssize_t>(wanted.size()))));
  for (size_t i = 0; i < wanted.size(); ++i) {
    PyTuple_SET_ITEM(returned.get(), static_cast<Py_ssize_t>(i),
                     checked(THPVariable_Wrap(std::move(results[wanted[i]]))));
  }
  return returned.release();
  END_HANDLE_TH_ERRORS
}

PyMethodDef kRecord = {"record",
                       reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(record)),
                       METH_FASTCALL, "record(*operands) -> tensor | tuple"};

// recorder(name, kept, wanted, kernel, otherwise, likes, only_step, pull) -> record
PyObject* make_recorder(PyObject*, PyObject* arguments) {
  HANDLE_TH_ERRORS
  const char* name;
  PyObject *kept, *wanted, *kernel, *otherwise, *likes, *only_step, *pull;
  if (!PyArg_ParseTuple(arguments, "sO!O!OOOOO", &name, &PyTuple_Type, &kept, &PyTuple_Type,
                        &wanted, &kernel, &otherwise, &likes, &only_step, &pull)) {
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
      PyTuple_Pack(7, kernel, otherwise, likes, only_step, pull, kernels.get(), capsule.get()));
  if (members.get() == nullptr) return nullptr;
  owned->members = members.get();
  return PyCFunction_New(&kRecord, members.get());
  END_HANDLE_TH_ERRORS
}

PyMethodDef kFunctions[] = {
    {"recorder", make_recorder, METH_VARARGS,
     "recorder(name, kept, wanted, kernel, otherwise, likes, only_step, pull) -> record"},
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
  THPObjectPtr capsule(
      PyCapsule_New(&kFunctionTable, bridge::bindings::kFunctionTableName, nullptr));
  if (module.get() == nullptr || capsule.get() == nullptr ||
      PyModule_AddObjectRef(module.get(), "function_table", capsule.get()) != 0) {
    return nullptr;
  }
  return module.release();
}
