// A program and the arrays of its call as the parameters of a CUDA kernel. They are all that a
// kernel reads except the arrays themselves, so that nothing points to host memory.
//
// The words are, in this order, with each part aligned to 16 bytes:
//
//   instructions   kPackedWords each: operation and `to`, a and b, c and 0 in 16 bits each, and
//                  `extra`, for kKeep the largest word that is dropped
//   constants      two words each: a double
//   integers       two words each: an int64
//   sections       two words each: the number of instructions, and of reductions; the reductions
//                  follow the section's instructions once more, as instructions of their own
//   arrays         operands, then results: data, dtype and 0, column stride and strides, two words
//                  each
//
// Registers are renumbered: tile and row registers share one pool, and each thread has its own
// pool. After the floating registers there are places for running reductions, the first place of a
// reduction in `extra`. After the integer registers there are the indices of the current row, and a
// place for each argmax, in c. Unused fields of an instruction are 0.
#ifndef BRIDGE_INTERPRETER_KERNEL_PROGRAM_H_
#define BRIDGE_INTERPRETER_KERNEL_PROGRAM_H_

#include <bridge/bridge.h>
#include <stddef.h>
#include <stdint.h>

#include "program/program.h"
#include "program/row_leaves.h"

namespace bridge::interpreter {

constexpr int kProgramThreads = 256;  // most threads of a block
constexpr int kPackedWords = 4;
constexpr int kMostLeaves = 32;
constexpr uint32_t kNoStart = 0xFFFF;  // for kKeep without a register of the batch's first element

struct KernelProgram {
  int64_t rows;        // of all batches
  int64_t batch_rows;  // of one batch
  int64_t cols;
  int64_t index_cols;
  int64_t chunks;  // of kSumChunk columns
  int64_t size[BRIDGE_MAX_DIMS];
  void* sums;  // [column sums, leaves, cols] in the arithmetic type
  RowLeaves row_leaves;
  int32_t dims;
  int32_t sections;
  int32_t constants_at;  // index in the words; constants are registers from 0 on
  int32_t constants;
  int32_t integers_at;
  int32_t integers;
  int32_t sections_at;
  int32_t arrays_at;
  int32_t results_at;
  int32_t array_words;
  int32_t integer_registers;  // including indices and places
  int32_t indices_at;         // index among these
  int32_t threads;            // of a block
  int32_t team;               // threads that share a row: a warp, or the block
  int32_t has_blocks;         // threads exchange numbers of blocks of columns
  // The columns of a thread in a chunk, less the thread's index in its team, in the order of
  // addition in the tree of row_sum_tree.h.
  int32_t leaves;
  uint16_t leaf_column[kMostLeaves];
};

// CUDA's limit on the bytes of parameters is kMostBytes. Fewer make a launch shorter.
constexpr int kFewBytes = 4096;
constexpr int kMostBytes = 32752;

template <int kBytes>
struct ProgramParams {
  static constexpr int kWords = (kBytes - static_cast<int>(sizeof(KernelProgram)) - 16) / 16 * 4;

  KernelProgram program;
  alignas(16) uint32_t words[kWords];
};

static_assert(sizeof(ProgramParams<kFewBytes>) <= kFewBytes);
static_assert(sizeof(ProgramParams<kMostBytes>) <= kMostBytes);

}  // namespace bridge::interpreter

#endif  // BRIDGE_INTERPRETER_KERNEL_PROGRAM_H_
