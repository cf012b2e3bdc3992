// bridge._native: the table of everything that Python can call.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <string.h>

#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings/cuda_library.h"
#include "bindings/python/array_calls.h"
#include "bindings/python/fast_call.h"
#include "bindings/python/frontend.h"
#include "bindings/python/kept_tensor.h"
#include "bindings/python/kernel_type.h"
#include "bindings/python/label_range.h"
#include "bindings/python/openmp.h"
#include "bindings/python/python_call.h"
#include "bindings/python/quick_product.h"
#include "bindings/xla/xla_ffi.h"
#include "bindings/xla/xla_stream.h"
#include "generated/cpu/programs.h"

namespace nb = nanobind;
namespace bp = bridge::bindings;

namespace {

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

nb::capsule target(void* handler) { return nb::capsule(handler, "xla._CUSTOM_CALL_TARGET"); }

// The handlers of a target. Every stage "instantiate" on CUDA loads the kernels.
nb::dict platforms_of(void* on_cpu, void* on_cuda) {
  nb::dict stages;
  stages["instantiate"] = target(bp::ffi_cuda_instantiate());
  stages["execute"] = target(on_cuda);
  nb::dict platforms;
  platforms["cpu"] = target(on_cpu);
  platforms["CUDA"] = stages;
  return platforms;
}

nb::dict ffi_handlers() {
  nb::dict targets;
  targets[bp::kFfiTarget] = platforms_of(bp::ffi_cpu(), bp::ffi_cuda());
  targets[bp::kProductTarget] = platforms_of(bp::ffi_product_cpu(), bp::ffi_product_cuda());
  targets[bp::kEmbeddingTarget] = platforms_of(bp::ffi_embedding_cpu(), bp::ffi_embedding_cuda());
  targets[bp::kConvolutionTarget] =
      platforms_of(bp::ffi_convolution_cpu(), bp::ffi_convolution_cuda());
  targets[bp::kSelectionTarget] = platforms_of(bp::ffi_selection_cpu(), bp::ffi_selection_cuda());
  nb::dict on_cpu;
  on_cpu["cpu"] = target(bp::ffi_taps_cpu());
  targets[bp::kTapsTarget] = on_cpu;
  return targets;
}

nb::dict stream_handlers() {
  nb::dict platforms;
  platforms["cpu"] = target(bp::stream_handler_on_cpu());
  platforms["CUDA"] = target(bp::stream_handler_on_cuda());
  return platforms;
}

std::vector<int32_t> words_of(const nb::bytes& code) {
  std::vector<int32_t> words(code.size() / sizeof(int32_t));
  memcpy(words.data(), code.data(), words.size() * sizeof(int32_t));
  return words;
}

// Returns the index of an instruction set; -1 if none has this name.
int isa_of(const std::string& name) {
  const char* const* const names = bridge_cpu_isas();
  for (int isa = 0; names[isa] != nullptr; ++isa) {
    if (name == names[isa]) return isa;
  }
  return -1;
}

bool has_generated(const nb::bytes& code, const std::vector<int32_t>& dtypes,
                   const std::string& isa) {
  const std::vector<int32_t> words = words_of(code);
  const int number = isa_of(isa);
  return number >= 0 && bridge::interpreter::has_generated(
                            words.data(), static_cast<int64_t>(words.size()), dtypes.data(),
                            static_cast<int64_t>(dtypes.size()), number);
}

// Adds a machine that was compiled for this bytecode and these dtypes (their numbers in bridge.h),
// with any values for the `free` constants.
void add_generated(const nb::bytes& code, const std::vector<int32_t>& dtypes,
                   const std::vector<int32_t>& free, const std::string& isa,
                   const std::string& library) {
  const std::vector<int32_t> words = words_of(code);
  const nb::gil_scoped_release released;
  check(bridge::interpreter::add_generated(words.data(), static_cast<int64_t>(words.size()),
                                           dtypes.data(), static_cast<int64_t>(dtypes.size()), free,
                                           isa.c_str(), library.c_str()));
}

// Adds kernels that were compiled for the same, for a device. Returns false if nothing uses the
// device yet.
bool add_generated_cuda(const nb::bytes& code, const std::vector<int32_t>& dtypes,
                        const std::vector<int32_t>& free, int32_t device, const nb::bytes& image,
                        int32_t vector, int32_t cells, int32_t held, int32_t kinds,
                        int32_t staged) {
  std::vector<int32_t> words(code.size() / sizeof(int32_t));
  memcpy(words.data(), code.data(), words.size() * sizeof(int32_t));
  bridge_program_kernels kernels{};
  kernels.code = words.data();
  kernels.words = static_cast<int64_t>(words.size());
  kernels.dtypes = dtypes.data();
  kernels.arrays = static_cast<int32_t>(dtypes.size());
  kernels.free = free.data();
  kernels.free_count = static_cast<int32_t>(free.size());
  kernels.device = device;
  kernels.image = image.data();
  kernels.vector = vector;
  kernels.cells = cells;
  kernels.held = held;
  kernels.kinds = kinds;
  kernels.staged = staged;
  const bp::CudaLibrary& library = require_cuda();
  const nb::gil_scoped_release released;
  bp::prepare_cuda(device);  // loads the interpreter, the reference of the comparison
  const bridge_status status = library.add_kernels(&kernels);
  if (status == BRIDGE_UNAVAILABLE) return false;
  if (status != BRIDGE_OK) raise(status, library.last_error());
  return true;
}

// Returns a name such as "sm_90"; "" if there is no such device.
std::string cuda_arch(int32_t device) {
  const bp::CudaLibrary* library = bp::cuda_library(nullptr);
  const int32_t arch = library == nullptr ? 0 : library->arch(device);
  return arch == 0 ? std::string() : "sm_" + std::to_string(arch);
}

void forget_generated() {
  bridge::interpreter::forget_generated();
  if (const bp::CudaLibrary* library = bp::cuda_library(nullptr)) library->forget_kernels();
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
  if (!bp::add_kernel_type(m.ptr()) || !bp::add_run(m.ptr()) || !bp::add_label_range(m.ptr()) ||
      !bp::add_kept_memory(m.ptr()) || !bp::add_array_calls(m.ptr()) ||
      !bp::add_quick_product(m.ptr())) {
    throw nb::python_error();
  }
  m.def("ffi_handlers", &ffi_handlers);
  m.def("empty_handler",
        [] { return nb::capsule(bp::empty_handler(), "xla._CUSTOM_CALL_TARGET"); });
  m.def("stream_handlers", &stream_handlers);
  m.def("noted_stream", &bp::noted_stream);
  m.def("use_openmp", &bp::use_openmp);
  m.def("use_function_table", [](nb::handle capsule) {
    if (!bp::use_function_table(capsule.ptr(), bp::fast_run)) throw nb::python_error();
  });
  m.def("build_info", &build_info);
  m.def("cpu_isa", &bridge_cpu_isa);
  m.def(
      "set_cpu_isa",
      [](nb::handle name) {
        check(bridge_set_cpu_isa(name.is_none() ? nullptr : nb::cast<const char*>(name)));
      },
      nb::arg("name").none());
  m.def("add_generated", &add_generated, nb::arg("code"), nb::arg("dtypes"), nb::arg("free"),
        nb::arg("isa"), nb::arg("library"));
  m.def("has_generated", &has_generated, nb::arg("code"), nb::arg("dtypes"), nb::arg("isa"));
  m.def("add_generated_cuda", &add_generated_cuda, nb::arg("code"), nb::arg("dtypes"),
        nb::arg("free"), nb::arg("device"), nb::arg("image"), nb::arg("vector"), nb::arg("cells"),
        nb::arg("held"), nb::arg("kinds"), nb::arg("staged"));
  m.def("rejected_programs", &bridge::interpreter::rejected_programs);
  m.def("generated_calls", [] {
    const bp::CudaLibrary* library = bp::cuda_library(nullptr);
    const int64_t on_cuda = library == nullptr ? 0 : library->added_calls();
    return bridge::interpreter::generated_calls() + on_cuda;
  });
  m.def("forget_generated", &forget_generated);
  m.def("cuda_arch", &cuda_arch, nb::arg("device"));
  m.def("set_cuda_library_path", &bp::set_cuda_library_path, nb::arg("path"), nb::arg("why") = "");
  m.def("cuda_unavailable", [] {
    std::string why;
    return bp::cuda_library(&why) == nullptr ? why : std::string();
  });
  m.def("cuda_device_count", [] {
    const bp::CudaLibrary* library = bp::cuda_library(nullptr);
    return library == nullptr ? 0 : library->device_count();
  });
  m.def("cuda_archs", [] { return std::string(require_cuda().archs()); });
  m.def(
      "prepare_cuda", [](int32_t device) { bp::prepare_cuda(device); },
      nb::call_guard<nb::gil_scoped_release>());
  m.def("prepare_cuda", [] { bp::prepare_cuda(); }, nb::call_guard<nb::gil_scoped_release>());
}
