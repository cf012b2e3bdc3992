// The block and warp interface on CUDA intrinsics; see simt.h for what each function promises.
#ifndef BRIDGE_CUDA_SIMT_CUDA_H_
#define BRIDGE_CUDA_SIMT_CUDA_H_

#include <cuda_runtime.h>

#include "cuda/driver.h"

#define BRIDGE_DEVICE __device__ __forceinline__

namespace bridge::simt {

constexpr int64_t kMaxGridX = INT32_MAX;
constexpr int64_t kMaxGridYZ = 65535;
// The GPUs that this is compiled for have 40 MiB and more; what is written goes through it too.
constexpr int64_t kCachedBytes = int64_t{24} << 20;

BRIDGE_DEVICE Index block_index() { return {blockIdx.x, blockIdx.y, blockIdx.z}; }
BRIDGE_DEVICE Index block_count() { return {gridDim.x, gridDim.y, gridDim.z}; }
BRIDGE_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }

BRIDGE_DEVICE void sync() { __syncthreads(); }

template <class T>
BRIDGE_DEVICE T shuffle(T value, int lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}

template <class T>
BRIDGE_DEVICE T shuffle_xor(T value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}

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

BRIDGE_DEVICE Vector16 load16(const void* address) {
  const uint4 value = *static_cast<const uint4*>(address);
  return {{value.x, value.y, value.z, value.w}};
}

BRIDGE_DEVICE void store16(void* address, Vector16 value) {
  *static_cast<uint4*>(address) =
      make_uint4(value.words[0], value.words[1], value.words[2], value.words[3]);
}

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, Kernel::kMinBlocks)
    entry(const __grid_constant__ typename Kernel::Params params) {
  Kernel::run(params);
}

// cudaGetLastError clears what it returns, so that an error of ours is not reported by the caller's
// next CUDA call as its own.
inline const char* message_of(cudaError_t error) {
  if (error == cudaSuccess) return nullptr;
  cudaGetLastError();
  return cudaGetErrorString(error);
}

template <class Kernel>
const char* launch(Grid grid, size_t dynamic_shared_bytes, void* stream,
                   const typename Kernel::Params& params) {
  void* arguments[] = {const_cast<typename Kernel::Params*>(&params)};
  const dim3 blocks(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
                    static_cast<unsigned>(grid.z));
  const unsigned threads = grid.threads > 0 ? grid.threads : Kernel::kThreads;
  return message_of(cudaLaunchKernel(reinterpret_cast<const void*>(&entry<Kernel>), blocks,
                                     dim3(threads), arguments, dynamic_shared_bytes,
                                     static_cast<cudaStream_t>(stream)));
}

template <class Kernel>
const char* load() {
  cudaFuncAttributes attributes;
  return message_of(
      cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(&entry<Kernel>)));
}

// A launch on a stream of another device than the current one fails, so the stream's device is made
// current first. *entered is for restore_current.
inline const char* make_current(void* stream, const void* memory, int* entered) {
  *entered = cuda::kNoDevice;
  const char* why = nullptr;
  const cuda::Driver* driver = cuda::driver(&why);
  if (driver == nullptr) return why;
  return cuda::message_of(*driver, cuda::enter(*driver, stream, memory, entered));
}

inline void restore_current(int entered) {
  const char* why = nullptr;
  if (const cuda::Driver* driver = cuda::driver(&why)) cuda::leave(*driver, entered);
}

}  // namespace bridge::simt

#endif  // BRIDGE_CUDA_SIMT_CUDA_H_
