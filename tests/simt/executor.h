// Where a test's kernels run: on the emulator, or with BRIDGE_EXECUTOR_GPU on the current GPU, in
// memory that host and device share.
#ifndef BRIDGE_TESTS_SIMT_EXECUTOR_H_
#define BRIDGE_TESTS_SIMT_EXECUTOR_H_

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>

#ifdef BRIDGE_EXECUTOR_GPU
#include <cuda_runtime_api.h>
#else
#include "simt_emulator.h"
#endif

namespace bridge::executor {

struct Free {
  void operator()(char* memory) const {
#ifdef BRIDGE_EXECUTOR_GPU
    cudaFree(memory);
#else
    delete[] memory;
#endif
  }
};
using Memory = std::unique_ptr<char[], Free>;

// Exactly so many bytes, at a multiple of 16.
inline Memory allocate(size_t bytes) {
#ifdef BRIDGE_EXECUTOR_GPU
  void* memory = nullptr;
  if (cudaMallocManaged(&memory, bytes > 0 ? bytes : 1) != cudaSuccess) std::abort();
  return Memory(static_cast<char*>(memory));
#else
  return Memory(new char[bytes > 0 ? bytes : 1]);
#endif
}

// Waits for what was enqueued; what went wrong, "" if nothing did.
inline std::string finish() {
#ifdef BRIDGE_EXECUTOR_GPU
  const cudaError_t error = cudaDeviceSynchronize();
  return error == cudaSuccess ? "" : cudaGetErrorString(error);
#else
  return simt::emulator::take_failure();
#endif
}

// The emulator runs the threads of the next launches in another order than those of the last.
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
