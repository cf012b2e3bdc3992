#include "cuda_library.h"

#include <dlfcn.h>

namespace bridge::python {
namespace {

std::string library_path;

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
    loaded.why = "bridge was built without CUDA";
    return loaded;
  }
  void* handle = dlopen(library_path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    loaded.why = std::string("the CUDA library could not be opened: ") + dlerror();
    return loaded;
  }
  CudaLibrary& library = loaded.library;
  std::string* why = &loaded.why;
  loaded.ok = find(handle, "bridge_bias_gelu_cuda_workspace", &library.bias_gelu_workspace, why) &&
              find(handle, "bridge_bias_gelu_cuda", &library.bias_gelu, why) &&
              find(handle, "bridge_cuda_last_error", &library.last_error, why) &&
              find(handle, "bridge_cuda_device_count", &library.device_count, why) &&
              find(handle, "bridge_cuda_archs", &library.archs, why) &&
              find(handle, "bridge_cuda_preload", &library.preload, why);
  return loaded;
}

}  // namespace

void set_cuda_library_path(const std::string& path) { library_path = path; }

const CudaLibrary* cuda_library(std::string* why) {
  static const Loaded loaded = load();
  if (!loaded.ok && why != nullptr) *why = loaded.why;
  return loaded.ok ? &loaded.library : nullptr;
}

}  // namespace bridge::python
