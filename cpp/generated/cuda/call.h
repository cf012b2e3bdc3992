// The parameters of a generated CUDA kernel, and the facts that its caller needs. Host and device
// code.
#ifndef BRIDGE_GENERATED_CUDA_CALL_H_
#define BRIDGE_GENERATED_CUDA_CALL_H_

#include <bridge/bridge.h>
#include <stdint.h>

#include "math/scalar.h"
#include "program/row_leaves.h"

namespace bridge::interpreter {

constexpr int kGeneratedThreads = 256;  // most threads of a block
constexpr int kShortGroup = 8;          // threads that share a short row
constexpr int kLeastShortGroup = 2;     // the fewest of them (whole_group())
constexpr int kShortVectors = 4;        // vectors of each of them
constexpr int kRowsAtOnce = 4;          // rows that kColumnsAligned loads together
constexpr int kMostBlocks = 16;         // blocks of a cluster that share a row, at most
constexpr int kWideChunks = 4;          // chunks of a row in a warp of kWideAligned
// The nodes of a row's chunks are in shared memory, and one warp adds them, 8 in each thread.
constexpr int64_t kMostGeneratedChunks = 256;

// Returns the number of 8-byte units for the cells of `chunks` chunks. A multiple of 4 keeps the
// next cells aligned for reads of 16 bytes.
BRIDGE_HD constexpr int cell_step(int chunks) { return (chunks + 3) / 4 * 4; }

// Returns the vectors of each thread for a short row that fills all vectors of a few threads.
// Longer rows have twice as many, because each row has a fixed cost for each thread. With column
// sums there is no room for more.
BRIDGE_HD constexpr int whole_vectors(int64_t cols, int vector, bool has_sums) {
  const bool are_few = has_sums || cols <= int64_t{kLeastShortGroup} * kShortVectors * vector;
  return are_few ? kShortVectors : 2 * kShortVectors;
}
// Returns the threads that share such a row; 0 if the row does not fill all their vectors.
BRIDGE_HD constexpr int whole_group(int64_t cols, int vector, bool has_sums) {
  for (int group = kLeastShortGroup; group <= kShortGroup; group *= 2)
    if (cols == int64_t{group} * whole_vectors(cols, vector, has_sums) * vector) return group;
  return 0;
}

// Returns true if kernels for an architecture stage operands in shared memory. Either two blocks
// with column sums and staged operands fit on a multiprocessor, or only one block fits even without
// staging.
BRIDGE_HD constexpr bool stages(int arch) { return arch >= 86 && arch != 87; }

// The kinds of kernels of a program. launch.cu chooses one for a call.
enum GeneratedKernelKind : int32_t {
  kShortAligned,     // rows of at most kShortGroup * kShortVectors vectors
  kShortAny,         // the same for arrays of any strides
  kResidentAligned,  // a warp for each chunk of a row, whose elements stay in registers
  kLongAligned,      // warps that read one chunk after the other, again in every section
  kLongAny,
  kColumnsAligned,  // threads that go down the rows of their columns and add column sums
  kWideAligned,     // as kResidentAligned, with several chunks of 16-bit numbers in a warp
  kShortWhole,      // as kShortAligned, for the row lengths that whole_group() accepts
  kGeneratedKinds,
};
constexpr const char* kGeneratedNames[kGeneratedKinds] = {
    "bridge_short_aligned", "bridge_short_any",  "bridge_resident_aligned",
    "bridge_long_aligned",  "bridge_long_any",   "bridge_columns_aligned",
    "bridge_wide_aligned",  "bridge_short_whole"};

// Facts about generated kernels, from bridge/lang/emission/cuda.py.
struct GeneratedFacts {
  int32_t vector;     // adjacent columns of a thread
  int32_t cells;      // cells of 8 bytes for each chunk of a row, in shared memory (cell_step())
  int32_t held;       // bytes of a chunk that kLongAligned may hold from section to section
  int32_t kinds;      // bit mask of the kinds of kernels that exist
  int32_t staged;     // operands shared by all rows that threads stage in shared memory
  int32_t constants;  // leading constants of the bytecode that kernels receive

  bool has(GeneratedKernelKind kind) const { return (kinds >> kind & 1) != 0; }
};

struct GeneratedSpace {
  int64_t rows;        // of all batches
  int64_t batch_rows;  // of one batch
  int64_t index_cols;
  int64_t size[BRIDGE_MAX_DIMS];  // aligned at the last dimension, as strides are, so that its
                                  // index is constant
  // One bit for each array, operands and then results: vectors of its rows may be read or written
  // at once. Kernels for aligned arrays do not test it.
  uint64_t vectors[2];
  // Sums in the arithmetic type: of leaves, [column sums, leaves, cols]. kColumnsAligned writes the
  // sums of chunks of rows instead, [chunks, cols] for each column sum, `sums_step` numbers apart.
  void* sums;
  int64_t sums_step;
  RowLeaves leaves;  // if there are column sums
  int32_t cols;
  int32_t dims;
  int32_t warps;        // that share a row; 1 also if a row has only a part of a warp
  int32_t threads;      // of a block
  int32_t blocks_log2;  // log2 of the blocks of a cluster that share a row
  int32_t turns;        // rounds in which these warps read all chunks of a row
  int32_t held_turns;   // chunks of each warp that stay in shared memory from section to section
};

// A constant of a call's bytecode, in each form that kernels read.
struct GeneratedConstant {
  double number;
  float single;
  uint32_t last_dropped;  // of the constant as a threshold (program.h)
};

// The parameters of a kernel. `array` has the operands, then the results.
template <int kArrays, int kConstants>
struct GeneratedParams {
  GeneratedSpace space;
  bridge_program_array array[kArrays];
  GeneratedConstant constant[kConstants > 0 ? kConstants : 1];
};

}  // namespace bridge::interpreter

#endif  // BRIDGE_GENERATED_CUDA_CALL_H_
