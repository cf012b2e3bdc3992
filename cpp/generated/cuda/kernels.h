// Registry of the programs compiled for CUDA at run time. It finds the kernels that run a bytecode
// on arrays of some dtypes on a device, in place of the interpreter.
#ifndef BRIDGE_GENERATED_CUDA_KERNELS_H_
#define BRIDGE_GENERATED_CUDA_KERNELS_H_

#include <bridge/bridge.h>

#include "generated/cuda/call.h"
#include "program/program.h"

namespace bridge::interpreter {

struct GeneratedKernels {
  GeneratedFacts facts;
  void* kernel[kGeneratedKinds];
  size_t shared_bytes[kGeneratedKinds];  // most that a block may have
  int most_blocks[kGeneratedKinds];      // in a cluster; a power of two
  size_t held_bytes;  // most of a kLongAligned block with held chunks; 0: it holds none
  int meetings;       // synchronizations, in each row, of the warps or blocks that share it
  bool are_added;     // false during verification, when no other call takes them
};

// Returns the kernels for a validated call on a device; null if none were added. Thread-safe.
const GeneratedKernels* generated_kernels(const bridge_program& call, int device);

// The parameters of one launch.
struct GeneratedLaunch {
  GeneratedKernelKind kind;
  int warps;          // that share a row
  int threads;        // of a block
  int blocks_of_row;  // a cluster, if more than one
  int64_t blocks, blocks_y;
  uint64_t vectors[2];  // as in GeneratedSpace; so are `leaves`, `turns` and `held_turns`
  RowLeaves leaves;
  int turns, held_turns;
  size_t shared_bytes;
};
// Returns false if the call is too large for the kernels: the interpreter must take it.
bool plan_generated(const GeneratedKernels& kernels, const bridge_program& call, const View& view,
                    const RowLeaves& leaves, GeneratedLaunch* launch);

// Enqueues the row kernel of a planned call. It writes the sums of leaves to `sums`.
// kColumnsAligned writes the sums of chunks of rows instead, `sums_step` numbers apart for each
// column sum; if one chunk holds all rows, its sums are the result. Returns NULL or an error
// message. Throws std::bad_alloc.
const char* launch_generated(const GeneratedKernels& kernels, const GeneratedLaunch& launch,
                             const bridge_program& call, void* sums, int64_t sums_step,
                             void* stream);

}  // namespace bridge::interpreter

#endif  // BRIDGE_GENERATED_CUDA_KERNELS_H_
