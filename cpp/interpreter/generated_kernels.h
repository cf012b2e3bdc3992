// Programs that were compiled for CUDA while the process runs: which kernels run the program of
// some words on arrays of some dtypes on a device, instead of the interpreter's.
#ifndef BRIDGE_INTERPRETER_GENERATED_KERNELS_H_
#define BRIDGE_INTERPRETER_GENERATED_KERNELS_H_

#include <bridge/bridge.h>

#include "interpreter/generated_call.h"
#include "interpreter/program.h"

namespace bridge::interpreter {

struct GeneratedKernels {
  GeneratedFacts facts;
  void* kernel[kGeneratedKinds];
  size_t shared_bytes[kGeneratedKinds];  // that a block of it may have
  int most_blocks[kGeneratedKinds];      // of a cluster; a power of two
  size_t held_bytes;                     // with what kLongAligned holds of rows; 0: nothing
  int meetings;                          // in a row, of warps or blocks that share it
  bool are_added;                        // else they run for their check, and no call takes them
};

// The kernels for a call that was checked, on a device; null where none were added. Any thread may
// ask.
const GeneratedKernels* generated_kernels(const bridge_program& call, int device);

// How one launch of them is to be.
struct GeneratedLaunch {
  GeneratedKernelKind kind;
  int warps;          // that share a row
  int threads;        // of a block
  int blocks_of_row;  // a cluster of them, where they are several
  int64_t blocks, blocks_y;
  uint64_t vectors[2];  // of GeneratedSpace, as is this
  RowLanes lanes;
  int turns, held_turns;
  size_t shared_bytes;
};
// False where the interpreter must take the call, for the length of its rows.
bool plan_generated(const GeneratedKernels& kernels, const bridge_program& call, const View& view,
                    const RowLanes& lanes, GeneratedLaunch* launch);

// Enqueues the rows of a call that was planned. `sums` is where the sums of lanes are left, or, by
// kColumnsAligned, the sums of chunks of rows, unless there is one chunk and they are the
// result: those of the next sum are `sums_step` numbers further on. NULL or what went wrong. Throws
// std::bad_alloc.
const char* launch_generated(const GeneratedKernels& kernels, const GeneratedLaunch& launch,
                             const bridge_program& call, void* sums, int64_t sums_step,
                             void* stream);

}  // namespace bridge::interpreter

#endif  // BRIDGE_INTERPRETER_GENERATED_KERNELS_H_
