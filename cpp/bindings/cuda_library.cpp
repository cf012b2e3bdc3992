#include "bindings/cuda_library.h"

#include <dlfcn.h>

#include <atomic>
#include <mutex>

namespace bridge::bindings {
namespace {

std::string library_path, no_library;

struct Loaded {
  CudaLibrary library;
  bool ok = false;
  std::string why;
};

template <class Function>
bool find(void* handle, const char* name, Function* function, std::string* why) {
  *function = reinterpret_cast<Function>(dlsym(handle, name));
  if (*function == nullptr) *why = std::string("the CUDA library has no symbol ") + name;
  return *function != nullptr;
}

Loaded load() {
  Loaded loaded;
  if (library_path.empty()) {
    loaded.why = no_library;
    return loaded;
  }
  void* handle = dlopen(library_path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    loaded.why = std::string("the CUDA library could not be opened: ") + dlerror();
    return loaded;
  }
  CudaLibrary& library = loaded.library;
  std::string* why = &loaded.why;
  loaded.ok =
      find(handle, "bridge_program_cuda_workspace", &library.workspace, why) &&
      find(handle, "bridge_program_cuda", &library.run, why) &&
      find(handle, "bridge_product_cuda_workspace", &library.product_workspace, why) &&
      find(handle, "bridge_product_cuda", &library.run_product, why) &&
      find(handle, "bridge_convolution_cuda_workspace", &library.convolution_workspace, why) &&
      find(handle, "bridge_convolution_cuda", &library.run_convolution, why) &&
      find(handle, "bridge_embedding_gradient_cuda", &library.embedding, why) &&
      find(handle, "bridge_selection_cuda", &library.selection, why) &&
      find(handle, "bridge_cuda_last_error", &library.last_error, why) &&
      find(handle, "bridge_cuda_device_count", &library.device_count, why) &&
      find(handle, "bridge_cuda_archs", &library.archs, why) &&
      find(handle, "bridge_cuda_preload", &library.preload, why) &&
      find(handle, "bridge_cuda_arch", &library.arch, why) &&
      find(handle, "bridge_program_cuda_add", &library.add_kernels, why) &&
      find(handle, "bridge_program_cuda_added_calls", &library.added_calls, why) &&
      find(handle, "bridge_program_cuda_forget", &library.forget_kernels, why);
  return loaded;
}

constexpr int32_t kMostDevices = 64;
std::atomic<uint64_t> prepared{0};  // bit i: device i

uint64_t bit_of(int32_t device) {
  return device >= 0 && device < kMostDevices ? uint64_t{1} << device : 0;
}

}  // namespace

void set_cuda_library_path(const std::string& path, const std::string& why) {
  library_path = path;
  no_library = why;
}

const CudaLibrary* cuda_library(std::string* why) {
  static const Loaded loaded = load();
  if (!loaded.ok && why != nullptr) *why = loaded.why;
  return loaded.ok ? &loaded.library : nullptr;
}

bool is_cuda_prepared(int32_t device) {
  const uint64_t bit = bit_of(device);
  return (prepared.load(std::memory_order_acquire) & bit) == bit;
}

void prepare_cuda(int32_t device) {
  if (is_cuda_prepared(device)) return;
  const CudaLibrary* library = cuda_library(nullptr);
  if (library == nullptr) return;
  static std::mutex loading;  // a second thread launches nothing before all is loaded
  const std::lock_guard<std::mutex> lock(loading);
  if (is_cuda_prepared(device)) return;
  if (library->preload(device) == BRIDGE_UNAVAILABLE) return;  // not in use yet
  prepared.fetch_or(bit_of(device), std::memory_order_release);
}

void prepare_cuda() {
  const CudaLibrary* library = cuda_library(nullptr);
  const int32_t count = library == nullptr ? 0 : library->device_count();
  for (int32_t device = 0; device < count; ++device) prepare_cuda(device);
}

}  // namespace bridge::bindings
