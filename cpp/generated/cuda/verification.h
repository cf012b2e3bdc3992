// Verification of kernels on a device, before calls get them.
#ifndef BRIDGE_GENERATED_CUDA_VERIFICATION_H_
#define BRIDGE_GENERATED_CUDA_VERIFICATION_H_

#include <bridge/bridge.h>

#include <functional>
#include <string>
#include <vector>

#include "program/program.h"

namespace bridge::interpreter {

// Enqueues a call whose arrays are on the current device.
using RunOnDevice = std::function<bridge_status(const bridge_program& call, void* workspace,
                                                size_t workspace_bytes, void* stream)>;

// Runs calls on random arrays by the interpreter and by `other` on the current device; returns ""
// if every bit of every result is the same, otherwise a message. `dtypes`: operands, then results.
// Throws std::bad_alloc.
std::string verify_on_device(const View& view, const std::vector<int32_t>& words,
                             const int32_t* dtypes, const RunOnDevice& other);

}  // namespace bridge::interpreter

#endif  // BRIDGE_GENERATED_CUDA_VERIFICATION_H_
