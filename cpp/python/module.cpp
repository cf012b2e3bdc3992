// bridge._native: the table of contents of what Python can call.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>
#include <thread>

#include "bias_gelu_call.h"
#include "cuda_library.h"
#include "dlpack_exchange.h"
#include "xla_ffi.h"

namespace nb = nanobind;
namespace bp = bridge::python;

namespace {

// Below this many elements giving up and taking back the interpreter lock costs more than it frees.
constexpr int64_t kReleaseLockFrom = 1 << 14;

[[noreturn]] void raise(bridge_status status, const char* message) {
  if (status == BRIDGE_INVALID_ARGUMENT) throw nb::value_error(message);
  if (status == BRIDGE_OUT_OF_MEMORY) throw std::bad_alloc();
  throw std::runtime_error(message);
}

void check(bridge_status status) {
  if (status != BRIDGE_OK) raise(status, bridge_last_error());
}

const bp::CudaLibrary& require_cuda() {
  std::string why;
  const bp::CudaLibrary* library = bp::cuda_library(&why);
  if (library == nullptr) raise(BRIDGE_UNAVAILABLE, why.c_str());
  return *library;
}

void read(bp::Borrowed* borrowed, nb::handle object) {
  if (!borrowed->read(object.ptr())) throw nb::python_error();
}

// Runs bias_gelu on any DLPack tensors. Returns -1, or the position of an operand whose strides the
// kernels cannot walk; nothing has been written then.
int bias_gelu(nb::tuple operands, nb::handle full, nb::handle row, int form, int order,
              int batch_ndim, int threads, nb::handle workspace) {
  const size_t count = nb::len(operands);
  if (count > bp::kMaxBiasGeluOperands) throw nb::value_error("too many operands for bias_gelu");
  bp::Borrowed borrowed[bp::kMaxBiasGeluOperands];
  bp::Operand places[bp::kMaxBiasGeluOperands];
  for (size_t i = 0; i < count; ++i) {
    read(&borrowed[i], operands[i]);
    places[i] = borrowed[i].operand;
  }
  bp::Borrowed outputs[2];
  read(&outputs[0], full);
  read(&outputs[1], row);
  const bp::Operand results[2] = {outputs[0].operand, outputs[1].operand};
  bridge_bias_gelu call;
  const bp::CallError error =
      bp::bind_bias_gelu(places, count, results, form, order, batch_ndim, &call);
  if (error.unreadable >= 0) return error.unreadable;
  if (error) throw nb::value_error(error.message.c_str());
  if (places[0].device == bp::Device::cuda) {
    const bp::CudaLibrary& library = require_cuda();
    bp::Borrowed scratch;
    size_t scratch_bytes = 0;
    if (!workspace.is_none()) {
      read(&scratch, workspace);
      scratch_bytes = library.bias_gelu_workspace(&call);
    }
    const bridge_status status =
        library.bias_gelu(&call, scratch.operand.data, scratch_bytes, borrowed[0].stream);
    if (status != BRIDGE_OK) raise(status, library.last_error());
    return -1;
  }
  const bridge_executor executor = bridge_pool(threads);
  if (call.batch * call.rows * call.cols < kReleaseLockFrom) {
    check(bridge_bias_gelu_cpu(&call, nullptr));
    return -1;
  }
  bridge_status status;
  {
    nb::gil_scoped_release unlocked;
    status = bridge_bias_gelu_cpu(&call, &executor);
  }
  check(status);
  return -1;
}

size_t bias_gelu_workspace(int64_t batch, int64_t rows, int64_t cols, bool column_sums,
                           bool float64) {
  bridge_bias_gelu call{};
  char nowhere = 0;
  call.batch = batch;
  call.rows = rows;
  call.cols = cols;
  const int32_t dtype = float64 ? BRIDGE_FLOAT64 : BRIDGE_FLOAT32;
  call.input.full = {&nowhere, dtype, rows * cols, cols};
  if (column_sums) call.output.row = {&nowhere, dtype, cols, 0};
  return require_cuda().bias_gelu_workspace(&call);
}

nb::dict ffi_handlers() {
  nb::dict targets;
  for (const bp::FfiHandler* handler = bp::kFfiHandlers; handler->target != nullptr; ++handler) {
    nb::str target(handler->target);
    if (!targets.contains(target)) targets[target] = nb::dict();
    nb::cast<nb::dict>(targets[target])[handler->platform] =
        nb::capsule(handler->address, "xla._CUSTOM_CALL_TARGET");
  }
  return targets;
}

nb::dict build_info() {
  nb::dict info;
  nb::list isas;
  for (const char* const* isa = bridge_cpu_isas(); *isa != nullptr; ++isa) isas.append(*isa);
  info["cpu_isas"] = isas;
  info["cpu_isa"] = bridge_cpu_isa();
  info["compiler"] = BRIDGE_COMPILER;
  info["ffi_api"] = nb::make_tuple(bp::ffi_api_major(), bp::ffi_api_minor());
  return info;
}

}  // namespace

NB_MODULE(_native, m) {
  m.def("bias_gelu", &bias_gelu, nb::arg("operands"), nb::arg("full").none(),
        nb::arg("row").none(), nb::arg("form"), nb::arg("order"), nb::arg("batch_ndim"),
        nb::arg("threads"), nb::arg("workspace").none());
  m.def("bias_gelu_workspace", &bias_gelu_workspace);
  m.def("ffi_handlers", &ffi_handlers);
  m.def("build_info", &build_info);
  m.def("cpu_isa", &bridge_cpu_isa);
  m.def(
      "set_cpu_isa",
      [](nb::handle name) {
        check(bridge_set_cpu_isa(name.is_none() ? nullptr : nb::cast<const char*>(name)));
      },
      nb::arg("name").none());
  m.def("set_cuda_library_path", &bp::set_cuda_library_path);
  m.def("cuda_unavailable", [] {
    std::string why;
    return bp::cuda_library(&why) == nullptr ? why : std::string();
  });
  m.def("cuda_device_count", [] {
    const bp::CudaLibrary* library = bp::cuda_library(nullptr);
    return library == nullptr ? 0 : library->device_count();
  });
  m.def("cuda_archs", [] { return std::string(require_cuda().archs()); });
  m.def("cuda_preload", [] {
    const bp::CudaLibrary& library = require_cuda();
    const bridge_status status = library.preload();
    if (status != BRIDGE_OK) raise(status, library.last_error());
  });
}
