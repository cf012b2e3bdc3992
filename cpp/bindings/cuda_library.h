// libbridge_cuda, opened at the first use, so that the module can be imported without a driver.
#ifndef BRIDGE_BINDINGS_CUDA_LIBRARY_H_
#define BRIDGE_BINDINGS_CUDA_LIBRARY_H_

#include <bridge/bridge.h>
#include <bridge/convolution.h>
#include <bridge/selection.h>

#include <string>

namespace bridge::bindings {

struct CudaLibrary {
  decltype(&::bridge_program_cuda_workspace) workspace = nullptr;
  decltype(&::bridge_program_cuda) run = nullptr;
  decltype(&::bridge_product_cuda_workspace) product_workspace = nullptr;
  decltype(&::bridge_product_cuda) run_product = nullptr;
  decltype(&::bridge_convolution_cuda_workspace) convolution_workspace = nullptr;
  decltype(&::bridge_convolution_cuda) run_convolution = nullptr;
  decltype(&::bridge_embedding_gradient_cuda) embedding = nullptr;
  decltype(&::bridge_selection_cuda) selection = nullptr;
  decltype(&::bridge_cuda_last_error) last_error = nullptr;
  decltype(&::bridge_cuda_device_count) device_count = nullptr;
  decltype(&::bridge_cuda_archs) archs = nullptr;
  decltype(&::bridge_cuda_preload) preload = nullptr;
  // For programs compiled at run time.
  decltype(&::bridge_cuda_arch) arch = nullptr;
  decltype(&::bridge_program_cuda_add) add_kernels = nullptr;
  decltype(&::bridge_program_cuda_added_calls) added_calls = nullptr;
  decltype(&::bridge_program_cuda_forget) forget_kernels = nullptr;
};

// Loads every kernel onto a device before the first launch on it, if there is a library and the
// device is in use. During a launch, loading could wait forever for a running collective. Errors
// are left to the launch to report. Costs almost nothing once it is done, and can take long before;
// is_cuda_prepared() tells which.
void prepare_cuda(int32_t device);
bool is_cuda_prepared(int32_t device);

// Does the same for every device that is in use by now.
void prepare_cuda();

// Sets the path of the library file; if it is empty, `why` says why there is none. The Python
// package calls it once, at import.
void set_cuda_library_path(const std::string& path, const std::string& why);

// Returns nullptr if there is no library or it cannot be opened, with the reason in *why.
const CudaLibrary* cuda_library(std::string* why);

}  // namespace bridge::bindings

#endif  // BRIDGE_BINDINGS_CUDA_LIBRARY_H_
