// The block and warp interface on CUDA intrinsics; simt.h documents the functions.
#ifndef BRIDGE_CUDA_SIMT_CUDA_H_
#define BRIDGE_CUDA_SIMT_CUDA_H_

#include <string.h>

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>
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

}  // namespace bridge::simt

#ifndef __CUDACC_RTC__  // NVRTC compiles kernels alone
#include "cuda/simt_launch.h"
#endif

#endif  // BRIDGE_CUDA_SIMT_CUDA_H_
