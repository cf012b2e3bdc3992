// libbridge_cuda, opened at the first use, so that the module imports where no driver is.
#ifndef BRIDGE_BORDER_CUDA_LIBRARY_H_
#define BRIDGE_BORDER_CUDA_LIBRARY_H_

#include <string>

#include "border/binding/op.h"

namespace bridge::border {

struct CudaLibrary {
  CudaEntry ops[kOpCount];  // in the order of kOps
  decltype(&::bridge_cuda_last_error) last_error = nullptr;
  decltype(&::bridge_cuda_device_count) device_count = nullptr;
  decltype(&::bridge_cuda_archs) archs = nullptr;
  decltype(&::bridge_cuda_preload) preload = nullptr;
  // Of programs that were compiled while the process runs.
  decltype(&::bridge_cuda_arch) arch = nullptr;
  decltype(&::bridge_program_cuda_add) add_kernels = nullptr;
  decltype(&::bridge_program_cuda_added_calls) added_calls = nullptr;
  decltype(&::bridge_program_cuda_forget) forget_kernels = nullptr;

  // nullptr where the library has no such op; then *why says so.
  const CudaEntry* entry_of(const Op& op, std::string* why) const;
};

// Loads every kernel onto a device before the first launch on it, where there is a library and
// somebody uses the device: in a launch the loading could wait for a collective that is running,
// for ever. What goes wrong is left to the launch to report. Costs next to nothing once it is done,
// and can take long before; is_prepared tells which.
void prepare_cuda(int32_t device);
bool is_cuda_prepared(int32_t device);

// The same for every device that is in use by now.
void prepare_cuda();

// The path of the library file, told once by the Python package at import.
void set_cuda_library_path(const std::string& path);

// nullptr where the library was not built or cannot be opened; then *why says so.
const CudaLibrary* cuda_library(std::string* why);

}  // namespace bridge::border

#endif  // BRIDGE_BORDER_CUDA_LIBRARY_H_
