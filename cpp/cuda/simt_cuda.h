// The block and warp interface on CUDA intrinsics; simt.h documents the functions.
#ifndef BRIDGE_CUDA_SIMT_CUDA_H_
#define BRIDGE_CUDA_SIMT_CUDA_H_

#include <string.h>

#ifndef __CUDACC_RTC__  // NVRTC compiles kernels alone
#include <cuda_runtime.h>

#include "cuda/driver.h"
#endif

#define BRIDGE_DEVICE __device__ __forceinline__

namespace bridge::simt {

#if defined(__CUDA_ARCH__)
constexpr int kArch = __CUDA_ARCH__ / 10;
#endif
constexpr int64_t kMaxGridX = INT32_MAX;
constexpr int64_t kMaxGridYZ = 65535;
constexpr int64_t kMultiprocessors = 132;  // the number on an H100
// The GPUs that this is compiled for have 40 MiB and more; written data passes through the cache
// too.
constexpr int64_t kCachedBytes = int64_t{24} << 20;
constexpr int64_t kRowBytes = int64_t{128} << 10;
// Sums of fewer elements mostly stay in the L2 cache.
constexpr int64_t kManyLeaves = kMultiprocessors / 2;
constexpr int64_t kManyElements = int64_t{1} << 24;

BRIDGE_DEVICE Index block_index() { return {blockIdx.x, blockIdx.y, blockIdx.z}; }
BRIDGE_DEVICE Index block_count() { return {gridDim.x, gridDim.y, gridDim.z}; }
// The compiler divides by a shift alone if it knows that a number is not negative.
BRIDGE_DEVICE int thread_index() {
  const int index = static_cast<int>(threadIdx.x);
  __builtin_assume(index >= 0);
  return index;
}

BRIDGE_DEVICE void sync() { __syncthreads(); }
BRIDGE_DEVICE void sync_warp() { __syncwarp(); }

// Before architecture 9.0 every cluster is a single block.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
BRIDGE_DEVICE int cluster_rank() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

BRIDGE_DEVICE void arrive_at_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
BRIDGE_DEVICE void wait_for_cluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

template <class T>
BRIDGE_DEVICE void store_in_cluster(T* own, int rank, T value) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(own));
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  if constexpr (sizeof(T) == 4) {
    uint32_t word;
    memcpy(&word, &value, sizeof word);
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(there), "r"(word) : "memory");
  } else {
    static_assert(sizeof(T) == 8);
    uint64_t word;
    memcpy(&word, &value, sizeof word);
    asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(there), "l"(word) : "memory");
  }
}
#else
BRIDGE_DEVICE int cluster_rank() { return 0; }
BRIDGE_DEVICE void arrive_at_cluster() {}
BRIDGE_DEVICE void wait_for_cluster() { __syncthreads(); }
template <class T>
BRIDGE_DEVICE void store_in_cluster(T* own, int /*rank*/, T value) {
  *own = value;
}
#endif

BRIDGE_DEVICE void sync_cluster() {
  arrive_at_cluster();
  wait_for_cluster();
}

template <class T>
BRIDGE_DEVICE T shuffle(T value, int lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}

template <class T>
BRIDGE_DEVICE T shuffle_xor(T value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}

BRIDGE_DEVICE int sum_in_warp(int value) { return __reduce_add_sync(0xffffffffu, value); }

BRIDGE_DEVICE uint32_t unknown(uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

BRIDGE_DEVICE int64_t unknown(int64_t value) {
  asm("" : "+l"(value));
  return value;
}

// The compiler would emit masks, moves or comparisons; here the bits become a predicate at once.
BRIDGE_DEVICE float chosen(uint32_t bits, float a, float b) {
  float value;
  asm("{\n"
      "  .reg .pred any;\n"
      "  setp.ne.u32 any, %1, 0;\n"
      "  selp.f32 %0, %2, %3, any;\n"
      "}"
      : "=f"(value)
      : "r"(bits), "f"(a), "f"(b));
  return value;
}

template <class T>
BRIDGE_DEVICE T* found_global(T* pointer) {
  asm("" : "+l"(pointer));
  __builtin_assume(__isGlobal(pointer));
  return pointer;
}

template <class T>
BRIDGE_DEVICE T* found_shared(T* pointer) {
  auto address = static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
  asm("" : "+r"(address));
  return static_cast<T*>(__cvta_shared_to_generic(address));
}

// Emits an event that a profiler can count.
BRIDGE_DEVICE void rarely() { asm volatile("pmevent 0;"); }

template <class T, int kCount, int kTag = 0>
BRIDGE_DEVICE T* shared_array() {
  __shared__ T storage[kCount];
  return storage;
}

template <class T>
BRIDGE_DEVICE T* dynamic_shared() {
  extern __shared__ __align__(16) unsigned char bridge_dynamic_shared[];
  return reinterpret_cast<T*>(bridge_dynamic_shared);
}

template <class Word>
BRIDGE_DEVICE Word load_word(const void* address) {
  return *static_cast<const Word*>(address);
}

template <class Word>
BRIDGE_DEVICE void store_word(void* address, Word value) {
  *static_cast<Word*>(address) = value;
}

BRIDGE_DEVICE Vector16 load16(const void* address) {
  const uint4 value = *static_cast<const uint4*>(address);
  return {{value.x, value.y, value.z, value.w}};
}

BRIDGE_DEVICE void store16(void* address, Vector16 value) {
  *static_cast<uint4*>(address) =
      make_uint4(value.words[0], value.words[1], value.words[2], value.words[3]);
}

BRIDGE_DEVICE void store16_whole(void* address, Vector16 value) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(address)),
               "r"(value.words[0]), "r"(value.words[1]), "r"(value.words[2]), "r"(value.words[3])
               : "memory");
}

#ifndef __CUDACC_RTC__

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
  void* arguments[] = {const_cast<typename Kernel::Params*>(&params)};
  const dim3 blocks(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
                    static_cast<unsigned>(grid.z));
  const unsigned threads = grid.threads > 0 ? grid.threads : Kernel::kThreads;
  return message_of(cudaLaunchKernel(reinterpret_cast<const void*>(&entry<Kernel>), blocks,
                                     dim3(threads), arguments, dynamic_shared_bytes,
                                     static_cast<cudaStream_t>(stream)));
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

#endif  // __CUDACC_RTC__

}  // namespace bridge::simt

#endif  // BRIDGE_CUDA_SIMT_CUDA_H_
