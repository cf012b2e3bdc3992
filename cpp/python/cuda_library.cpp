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
  for (size_t i = 0; i < kOpCount; ++i) {
    const std::string name = std::string("bridge_") + kOps[i]->counts.name + "_cuda";
    library.ops[i].run = dlsym(handle, name.c_str());
    library.ops[i].workspace = dlsym(handle, (name + "_workspace").c_str());
  }
  loaded.ok = find(handle, "bridge_cuda_last_error", &library.last_error, why) &&
              find(handle, "bridge_cuda_device_count", &library.device_count, why) &&
              find(handle, "bridge_cuda_archs", &library.archs, why) &&
              find(handle, "bridge_cuda_preload", &library.preload, why);
  return loaded;
}

}  // namespace

const CudaEntry* CudaLibrary::entry_of(const Op& op, std::string* why) const {
  for (size_t i = 0; i < kOpCount; ++i) {
    if (kOps[i] == &op && ops[i].run != nullptr && ops[i].workspace != nullptr) return &ops[i];
  }
  *why = std::string("the CUDA library has no ") + op.counts.name;
  return nullptr;
}

void set_cuda_library_path(const std::string& path) { library_path = path; }

const CudaLibrary* cuda_library(std::string* why) {
  static const Loaded loaded = load();
  if (!loaded.ok && why != nullptr) *why = loaded.why;
  return loaded.ok ? &loaded.library : nullptr;
}

}  // namespace bridge::python
