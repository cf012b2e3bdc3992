// The generation of tensor cores that the next call runs on.
#ifndef BRIDGE_TESTS_SIMT_TENSOR_CORE_TURN_H_
#define BRIDGE_TESTS_SIMT_TENSOR_CORE_TURN_H_

#include "executor.h"
#include "tensor_core_reference.h"
#ifndef BRIDGE_EXECUTOR_GPU
#include "tensor_core_emulator.h"
#endif

namespace tensor_core_test {

// Lets the emulator be of a generation, or returns the model of the GPU.
inline Model next_model() {
#ifdef BRIDGE_EXECUTOR_GPU
  int major = 0;
  executor::require(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0));
  return major < 9 ? kAmpere : kHopper;
#else
  static int turn = 0;
  const bool is_ampere = ++turn % 2 == 0;
  bridge::simt::emulator::generation() = bridge::simt::emulator::kGenerations[is_ampere ? 0 : 1];
  return is_ampere ? kAmpere : kHopper;
#endif
}

}  // namespace tensor_core_test

#endif  // BRIDGE_TESTS_SIMT_TENSOR_CORE_TURN_H_
