// The host's half of the block and warp interface on CUDA: launches, code, devices and memory. A
// part of simt_cuda.h; simt.h documents the functions.
#ifndef BRIDGE_CUDA_SIMT_LAUNCH_H_
#define BRIDGE_CUDA_SIMT_LAUNCH_H_

#include <cuda_runtime.h>
#include <stddef.h>

#include "cuda/driver.h"
#include "cuda/shared_memory.h"

namespace bridge::simt {

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, Kernel::kMinBlocks)
    entry(const __grid_constant__ typename Kernel::Params params) {
  Kernel::run(params);
}

// cudaGetLastError clears the error, so that the caller's next CUDA call does not report ours as
// its own.
inline const char* message_of(cudaError_t error) {
  if (error == cudaSuccess) return nullptr;
  cudaGetLastError();
  if (error == cudaErrorNoKernelImageForDevice) {
    return "no kernel is compiled for this GPU (`python -m bridge info` says for which)";
  }
  return cudaGetErrorString(error);
}

template <class Kernel>
const char* load() {
  cudaFuncAttributes attributes;
  return message_of(
      cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(&entry<Kernel>)));
}

// A launch on a stream of a device other than the current one fails. So the device of the memory,
// which is the stream's too, is made current first. *entered is for restore_current.
inline const char* make_current(const void* memory, int* entered) {
  *entered = cuda::kNoDevice;
  const char* why = nullptr;
  const cuda::Driver* driver = cuda::driver(&why);
  if (driver == nullptr) return why;
  return cuda::message_of(*driver, cuda::enter(*driver, memory, entered));
}

inline void restore_current(int entered) {
  const char* why = nullptr;
  if (const cuda::Driver* driver = cuda::driver(&why)) cuda::leave(*driver, entered);
}

// Enters a device that the process uses; leaves any other device alone.
inline const char* enter_device(int device, int* entered, bool* is_used) {
  *entered = cuda::kNoDevice;
  *is_used = false;
  const char* why = nullptr;
  const cuda::Driver* driver = cuda::driver(&why);
  if (driver == nullptr) return why;
  unsigned flags = 0;
  int active = 0;
  const int error = driver->primary_ctx_get_state(device, &flags, &active);
  *is_used = active != 0;
  if (error != 0 || !*is_used) return cuda::message_of(*driver, error);
  return cuda::message_of(*driver, cuda::enter(*driver, device, entered));
}

inline int current_device() {
  const char* why = nullptr;
  const cuda::Driver* driver = cuda::driver(&why);
  int device = cuda::kNoDevice;
  if (driver == nullptr || driver->ctx_get_device(&device) != 0) return cuda::kNoDevice;
  return device;
}

inline int current_arch() {
  const char* why = nullptr;
  const cuda::Driver* driver = cuda::driver(&why);
  return driver == nullptr ? 0 : cuda::arch_of(*driver, current_device());
}

inline const char* load_code(const void* image, void** code) {
  const char* why = nullptr;
  const cuda::Driver* driver = cuda::driver(&why);
  return driver == nullptr ? why : cuda::message_of(*driver, driver->module_load_data(code, image));
}

inline void unload_code(void* code) {
  const char* why = nullptr;
  if (const cuda::Driver* driver = cuda::driver(&why)) driver->module_unload(code);
}

inline const char* find_kernel(void* code, const char* name, void** kernel) {
  const char* why = nullptr;
  const cuda::Driver* driver = cuda::driver(&why);
  return driver == nullptr
             ? why
             : cuda::message_of(*driver, driver->module_get_function(kernel, code, name));
}

// The driver's attributes have the layout of the runtime's.
static_assert(sizeof(cuda::LaunchAttribute) == sizeof(cudaLaunchAttribute) &&
              offsetof(cuda::LaunchAttribute, value) == offsetof(cudaLaunchAttribute, val));

inline cuda::LaunchConfig config_of(const Grid& grid, size_t dynamic_shared_bytes, void* stream) {
  cuda::LaunchConfig config{};
  config.grid_x = static_cast<unsigned>(grid.x);
  config.grid_y = static_cast<unsigned>(grid.y);
  config.grid_z = static_cast<unsigned>(grid.z);
  config.block_x = static_cast<unsigned>(grid.threads);
  config.block_y = config.block_z = 1;
  config.shared_bytes = static_cast<unsigned>(dynamic_shared_bytes);
  config.stream = stream;
  return config;
}

inline const char* launch_found(void* kernel, Grid grid, size_t dynamic_shared_bytes, void* stream,
                                const void* params) {
  const char* why = nullptr;
  const cuda::Driver* driver = cuda::driver(&why);
  if (driver == nullptr) return why;
  const cuda::LaunchConfig config = config_of(grid, dynamic_shared_bytes, stream);
  void* arguments[] = {const_cast<void*>(params)};
  if (grid.cluster > 1) {
    return cuda::message_of(
        *driver, cuda::launch_clusters(*driver, kernel, config, grid.cluster, arguments));
  }
  return cuda::message_of(*driver,
                          driver->launch_kernel(kernel, config.grid_x, config.grid_y, config.grid_z,
                                                config.block_x, config.block_y, config.block_z,
                                                config.shared_bytes, stream, arguments, nullptr));
}

inline int most_in_cluster(void* kernel, int threads, size_t dynamic_shared_bytes, int most) {
  const char* why = nullptr;
  const cuda::Driver* driver = cuda::driver(&why);
  if (driver == nullptr) return 1;
  Grid grid;
  grid.threads = threads;
  const cuda::LaunchConfig config = config_of(grid, dynamic_shared_bytes, nullptr);
  return cuda::most_in_cluster(*driver, kernel, config, most);
}

// Finds a kernel on the current device.
template <class Kernel>
const char* found(void** kernel) {
  return message_of(cudaGetFuncBySymbol(reinterpret_cast<cudaFunction_t*>(kernel),
                                        reinterpret_cast<const void*>(&entry<Kernel>)));
}

template <class Kernel>
const char* launch(Grid grid, size_t dynamic_shared_bytes, void* stream,
                   const typename Kernel::Params& params) {
  if (grid.cluster > 1) {
    void* kernel = nullptr;
    const char* error = found<Kernel>(&kernel);
    return error ? error : launch_found(kernel, grid, dynamic_shared_bytes, stream, &params);
  }
  const void* const function = reinterpret_cast<const void*>(&entry<Kernel>);
  if (dynamic_shared_bytes > cuda::kSharedBytes) {
    const cudaError_t error =
        cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(dynamic_shared_bytes));
    if (error != cudaSuccess) {
      cudaGetLastError();
      return "the GPU gives a block less shared memory than the kernel needs";
    }
  }
  void* arguments[] = {const_cast<typename Kernel::Params*>(&params)};
  const dim3 blocks(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
                    static_cast<unsigned>(grid.z));
  const unsigned threads = grid.threads > 0 ? grid.threads : Kernel::kThreads;
  return message_of(cudaLaunchKernel(function, blocks, dim3(threads), arguments,
                                     dynamic_shared_bytes, static_cast<cudaStream_t>(stream)));
}

template <class Kernel>
int most_in_cluster(size_t dynamic_shared_bytes, int most) {
  void* kernel = nullptr;
  if (found<Kernel>(&kernel) != nullptr) return 1;
  return most_in_cluster(kernel, Kernel::kThreads, dynamic_shared_bytes, most);
}

inline bool allow_shared(void* kernel, size_t bytes) {
  const char* why = nullptr;
  const cuda::Driver* driver = cuda::driver(&why);
  return driver != nullptr && cuda::allow_shared(*driver, kernel, bytes);
}

inline size_t shared_beside(void* kernel, int threads) {
  const char* why = nullptr;
  const cuda::Driver* driver = cuda::driver(&why);
  return driver == nullptr ? 0 : cuda::shared_beside(*driver, kernel, threads);
}

class BesideCaptures {
 public:
  BesideCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~BesideCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// Memory is allocated and freed in the order of the stream: cudaFree would wait for the device.
struct Scratch {
  Scratch() {
    why = message_of(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    stream = stream_;
  }
  ~Scratch() {
    for (int i = 0; i < count_; ++i) cudaFreeAsync(pieces_[i], stream_);
    if (why == nullptr) {
      cudaStreamSynchronize(stream_);
      cudaStreamDestroy(stream_);
    }
    cudaGetLastError();
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  char* take(size_t bytes) {
    if (count_ == kMost ||
        message_of(cudaMallocAsync(&pieces_[count_], bytes, stream_)) != nullptr) {
      return nullptr;
    }
    return static_cast<char*>(pieces_[count_++]);
  }
  const char* copy(void* to, const void* from, size_t bytes) const {
    return message_of(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_));
  }
  const char* wait() const { return message_of(cudaStreamSynchronize(stream_)); }

  const char* why = nullptr;
  void* stream = nullptr;

 private:
  static constexpr int kMost = 4;
  cudaStream_t stream_ = nullptr;
  void* pieces_[kMost] = {};
  int count_ = 0;
};

}  // namespace bridge::simt

#endif  // BRIDGE_CUDA_SIMT_LAUNCH_H_
