// Runs a test's kernels on the emulator, or with BRIDGE_EXECUTOR_GPU on the current GPU.
//
// A test fills and reads host memory. On a GPU each piece has a twin of exactly its size in device
// memory: `placed` copies all pieces there, and `finish` copies them back.
#ifndef BRIDGE_TESTS_SIMT_EXECUTOR_H_
#define BRIDGE_TESTS_SIMT_EXECUTOR_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#ifdef BRIDGE_EXECUTOR_GPU
#include <cuda_runtime_api.h>

#include <cstring>
#include <map>
#include <type_traits>
#else
#include "simt_emulator.h"
#endif

namespace bridge::executor {

#ifdef BRIDGE_EXECUTOR_GPU
struct Twin {
  size_t bytes;
  char* device;
};

// The twins by the address of the host memory.
inline std::map<uintptr_t, Twin>& twins() {
  static std::map<uintptr_t, Twin> all;
  return all;
}

inline void require(cudaError_t error) {
  if (error != cudaSuccess) std::abort();
}

// Returns the device address for the host address `address`; 0 if it is in no piece. The end of a
// piece counts as inside, because an empty operand may point there.
inline uintptr_t on_device(uintptr_t address) {
  auto next = twins().upper_bound(address);
  if (next == twins().begin()) return 0;
  const auto& [begin, twin] = *--next;
  const uintptr_t offset = address - begin;
  return offset <= twin.bytes ? reinterpret_cast<uintptr_t>(twin.device) + offset : 0;
}
#endif

struct Free {
  void operator()(char* memory) const {
#ifdef BRIDGE_EXECUTOR_GPU
    const auto twin = twins().find(reinterpret_cast<uintptr_t>(memory));
    cudaFree(twin->second.device);
    twins().erase(twin);
#endif
    delete[] memory;
  }
};
using Memory = std::unique_ptr<char[], Free>;

// Allocates exactly `bytes` bytes, at a multiple of 16.
inline Memory allocate(size_t bytes) {
#ifdef BRIDGE_EXECUTOR_GPU
  void* device = nullptr;
  require(cudaMalloc(&device, bytes > 0 ? bytes : 1));
  char* memory = new char[bytes + 1];  // so that no other piece begins at the end of this one
  twins()[reinterpret_cast<uintptr_t>(memory)] = {bytes, static_cast<char*>(device)};
  return Memory(memory);
#else
  return Memory(new char[bytes > 0 ? bytes : 1]);
#endif
}

// Returns the call for the device, after copying the operands' present contents there.
template <class Call>
Call placed(const Call& call) {
#ifdef BRIDGE_EXECUTOR_GPU
  for (const auto& [begin, twin] : twins()) {
    const void* host = reinterpret_cast<const void*>(begin);
    require(cudaMemcpy(twin.device, host, twin.bytes, cudaMemcpyHostToDevice));
  }
  // A word of the struct that is an address in one of the pieces is a pointer; sizes, strides and
  // factors never look like one.
  static_assert(std::is_trivially_copyable_v<Call> && alignof(Call) >= alignof(uintptr_t));
  uintptr_t words[sizeof(Call) / sizeof(uintptr_t)];
  std::memcpy(words, &call, sizeof words);
  for (uintptr_t& word : words) {
    if (const uintptr_t device = on_device(word)) word = device;
  }
  Call result = call;
  std::memcpy(&result, words, sizeof words);
  return result;
#else
  return call;
#endif
}

inline void* placed(const Memory& memory) {
#ifdef BRIDGE_EXECUTOR_GPU
  return reinterpret_cast<void*>(on_device(reinterpret_cast<uintptr_t>(memory.get())));
#else
  return memory.get();
#endif
}

// Waits for the enqueued work; returns its error, or "".
inline std::string finish() {
#ifdef BRIDGE_EXECUTOR_GPU
  const cudaError_t error = cudaDeviceSynchronize();
  if (error != cudaSuccess) return cudaGetErrorString(error);
  for (const auto& [begin, twin] : twins()) {
    void* host = reinterpret_cast<void*>(begin);
    require(cudaMemcpy(host, twin.device, twin.bytes, cudaMemcpyDeviceToHost));
  }
  return "";
#else
  return simt::emulator::take_failure();
#endif
}

// Lets the emulator run the threads of the next launches in another order.
inline void next_order() {
#ifndef BRIDGE_EXECUTOR_GPU
  static int turn = 0;
  ++turn;
  simt::emulator::options().order = static_cast<simt::emulator::Order>(turn % 4);
  simt::emulator::options().seed = static_cast<uint64_t>(turn);
#endif
}

}  // namespace bridge::executor

#endif  // BRIDGE_TESTS_SIMT_EXECUTOR_H_
