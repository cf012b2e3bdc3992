// A program and the arrays of its call as the parameters of a CUDA kernel: all that a kernel reads
// but the arrays themselves, so that nothing points to memory of the host.
//
// The words are, in this order and each part from a whole 16 bytes on:
//
//   instructions   kPackedWords each: operation and `to`, a and b, c and 0 in 16 bits each, and
//                  `extra`, of kKeep the largest word that is dropped
//   constants      two words each: a double
//   integers       two words each: an int64
//   sections       two words each: how many instructions it has, and how many reductions; these are
//                  instructions of their own behind the section's, once more
//   arrays         those of operands, then those of results: data, dtype and 0, column stride and
//                  strides, two words each
//
// Registers are numbered anew: tile and row registers are one pool, and each thread has its own of
// both. Behind the floating ones are places for reductions under way, the first of a reduction in
// `extra`; behind the integer ones the indices of the present row, and for each argmax a place in
// c. What an instruction has no use for is 0.
#ifndef BRIDGE_INTERPRETER_KERNEL_PROGRAM_H_
#define BRIDGE_INTERPRETER_KERNEL_PROGRAM_H_

#include <bridge/bridge.h>
#include <stddef.h>
#include <stdint.h>

#include "interpreter/program.h"
#include "interpreter/row_lanes.h"

namespace bridge::interpreter {

constexpr int kProgramThreads = 256;  // of a block, at most
constexpr int kPackedWords = 4;
constexpr int kMostLeaves = 32;
constexpr uint32_t kNoStart = 0xFFFF;  // kKeep without a register of the batch's first element

struct KernelProgram {
  int64_t rows;        // of all batches
  int64_t batch_rows;  // of one
  int64_t cols;
  int64_t index_cols;
  int64_t chunks;  // of kSumChunk columns
  int64_t size[BRIDGE_MAX_DIMS];
  void* sums;  // [column sums, lanes, cols] in the arithmetic type
  RowLanes lanes;
  int32_t dims;
  int32_t sections;
  int32_t constants_at;  // among the words; constants are registers from 0 on
  int32_t constants;
  int32_t integers_at;
  int32_t integers;
  int32_t sections_at;
  int32_t arrays_at;
  int32_t results_at;
  int32_t array_words;
  int32_t integer_registers;  // with indices and places
  int32_t indices_at;         // among them
  int32_t threads;            // of a block
  int32_t team;               // threads that share a row: a warp, or the block
  // A chunk's elements that a thread has, in the order in which the tree of row_sum_tree.h adds
  // them: the thread's number in its team is to be added.
  int32_t leaves;
  uint16_t leaf_column[kMostLeaves];
};

// CUDA takes so many bytes of parameters; few make a launch shorter.
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
