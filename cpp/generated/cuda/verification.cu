#include "generated/cuda/verification.h"

#include "cuda/last_error.h"
#include "cuda/simt.h"
#include "program/comparison.h"
#include "program/interpreter_cuda.h"

namespace bridge::interpreter {
namespace {

// Runs a call whose arrays are in host memory on the current device; returns "" or an error
// message.
std::string run_there(const bridge_program& given, Memory& memory, const RunOnDevice& run) {
  simt::Scratch scratch;
  if (scratch.why != nullptr) return scratch.why;
  std::vector<size_t> offsets;
  size_t bytes = 0;
  for (const std::vector<char>& piece : memory) {
    offsets.push_back(bytes);
    bytes += (piece.size() + 255) / 256 * 256;
  }
  bridge_program call = given;
  const size_t workspace_bytes = bridge_program_cuda_workspace(&call);
  char* const there = scratch.take(bytes + 256);
  char* const workspace = scratch.take(workspace_bytes + 256);
  if (there == nullptr || workspace == nullptr) return "no memory on the device to check it";
  std::vector<bridge_program_array> arrays;
  for (size_t i = 0; i < memory.size(); ++i) {
    const auto number = static_cast<int32_t>(i);
    arrays.push_back(number < given.operands ? given.operand[number]
                                             : given.result[number - given.operands]);
    arrays.back().data = there + offsets[i];
    const char* error = scratch.copy(there + offsets[i], memory[i].data(), memory[i].size());
    if (error != nullptr) return error;
  }
  call.operand = arrays.data();
  call.result = arrays.data() + given.operands;
  if (run(call, workspace, workspace_bytes, scratch.stream) != BRIDGE_OK)
    return cuda::error_message();
  for (size_t i = static_cast<size_t>(given.operands); i < memory.size(); ++i) {
    const char* error = scratch.copy(memory[i].data(), there + offsets[i], memory[i].size());
    if (error != nullptr) return error;
  }
  const char* error = scratch.wait();
  return error == nullptr ? "" : error;
}

}  // namespace

std::string verify_on_device(const View& view, const std::vector<int32_t>& words,
                             const int32_t* dtypes, const RunOnDevice& other) {
  const auto on_device = [](const RunOnDevice& run) {
    return
        [&run](const bridge_program& call, Memory& memory) { return run_there(call, memory, run); };
  };
  const RunOnDevice interpreted = [](const bridge_program& call, void* workspace, size_t bytes,
                                     void* stream) {
    return run_program(call, workspace, bytes, stream, nullptr);
  };
  return compare(view, words, dtypes, on_device(interpreted), on_device(other));
}

}  // namespace bridge::interpreter
