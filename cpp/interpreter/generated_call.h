// What a generated CUDA kernel is given, and what its caller must know of it. Host and device code.
#ifndef BRIDGE_INTERPRETER_GENERATED_CALL_H_
#define BRIDGE_INTERPRETER_GENERATED_CALL_H_

#include <bridge/bridge.h>
#include <stdint.h>

#include "interpreter/row_lanes.h"
#include "math/scalar.h"

namespace bridge::interpreter {

constexpr int kGeneratedThreads = 256;  // of a block, at most
constexpr int kShortGroup = 8;          // threads that share a short row, in the kernels for these
constexpr int kLeastShortGroup = 2;     // or fewer, where whole_group() says so
constexpr int kShortVectors = 4;        // and vectors of each
constexpr int kRowsAtOnce = 4;          // whose loads are under way together, of kColumnsAligned
constexpr int kMostBlocks = 16;         // that share a row, as a cluster
constexpr int kWideChunks = 4;          // of a row, that a warp of kWideAligned has
// The nodes of a row's chunks stand in shared memory, and a warp adds them: 8 in each thread.
constexpr int64_t kMostGeneratedChunks = 256;

// How many pieces of 8 bytes the cells of so many chunks take, so that the next ones can be read 16
// bytes at once.
BRIDGE_HD constexpr int cell_step(int chunks) { return (chunks + 3) / 4 * 4; }

// Short rows of as many columns as a few threads have in all of their vectors: of twice as many
// vectors where the row is long enough and sums of columns do not take the room, as what a row asks
// of a thread beside its elements is much.
BRIDGE_HD constexpr int whole_vectors(int64_t cols, int vector, bool has_sums) {
  const bool are_few = has_sums || cols <= int64_t{kLeastShortGroup} * kShortVectors * vector;
  return are_few ? kShortVectors : 2 * kShortVectors;
}
// The threads that share one; 0 of rows that are none of these.
BRIDGE_HD constexpr int whole_group(int64_t cols, int vector, bool has_sums) {
  for (int group = kLeastShortGroup; group <= kShortGroup; group *= 2)
    if (cols == int64_t{group} * whole_vectors(cols, vector, has_sums) * vector) return group;
  return 0;
}

// Whether kernels of an architecture stage operands: where two blocks with the column sums of a row
// have room for them on a multiprocessor, or one has not more than itself.
BRIDGE_HD constexpr bool stages(int arch) { return arch >= 86 && arch != 87; }

// Kernels of a program; which of them takes a call is said in generated_launch.cu.
enum GeneratedKernelKind : int32_t {
  kShortAligned,     // rows of kShortGroup * kShortVectors vectors
  kShortAny,         // the same on arrays of any strides
  kResidentAligned,  // a warp for each chunk of a row, whose elements stay in registers
  kLongAligned,      // warps that take one chunk after the other, in every section again
  kLongAny,
  kColumnsAligned,  // rows of one column after the other, with the column sums of what it computes
  kWideAligned,     // as kResidentAligned, with several chunks of numbers of 16 bits in a warp
  kShortWhole,      // as kShortAligned, of rows that whole_group() knows
  kGeneratedKinds,
};
constexpr const char* kGeneratedNames[kGeneratedKinds] = {
    "bridge_short_aligned", "bridge_short_any",  "bridge_resident_aligned",
    "bridge_long_aligned",  "bridge_long_any",   "bridge_columns_aligned",
    "bridge_wide_aligned",  "bridge_short_whole"};

// What bridge/lang/emission_cuda.py tells of the kernels that it wrote.
struct GeneratedFacts {
  int32_t vector;     // columns side by side that a thread has
  int32_t cells;      // 8 bytes of shared memory for each chunk of a row, and a few more: cell_step
  int32_t held;       // bytes of a chunk that several sections read, where kLongAligned may hold it
  int32_t kinds;      // 1 << kind for each kind of kernel that there is
  int32_t staged;     // operands that all rows share of which a thread stages what it has
  int32_t constants;  // of a call's words that kernels are given, the first ones

  bool has(GeneratedKernelKind kind) const { return (kinds >> kind & 1) != 0; }
};

struct GeneratedSpace {
  int64_t rows;        // of all batches
  int64_t batch_rows;  // of one
  int64_t index_cols;
  int64_t size[BRIDGE_MAX_DIMS];  // the last dimension last, as in strides: its place is constant
  // A bit for each array, operands and then results: whether vectors of its rows may be read, or
  // written, at once. Kernels for aligned arrays take it for granted.
  uint64_t vectors[2];
  // In the arithmetic type: the sums of lanes, [column sums, lanes, cols]; of kColumnsAligned those
  // of chunks of rows, [chunks, cols] for each at the distance `sums_step`.
  void* sums;
  int64_t sums_step;
  RowLanes lanes;  // where there are column sums
  int32_t cols;
  int32_t dims;
  int32_t warps;        // that share a row; 1 also where only a part of one does
  int32_t threads;      // of a block
  int32_t blocks_log2;  // of a cluster, which share a row where they are several
  int32_t turns;        // in which these have all its chunks
  int32_t held_turns;   // so many chunks of each warp stay in shared memory from section to section
};

// A constant of a call's words, as a kernel may want it.
struct GeneratedConstant {
  double number;
  float single;
  uint32_t last_dropped;  // as a threshold
};

// Operands, then results.
template <int kArrays, int kConstants>
struct GeneratedParams {
  GeneratedSpace space;
  bridge_program_array array[kArrays];
  GeneratedConstant constant[kConstants > 0 ? kConstants : 1];
};

}  // namespace bridge::interpreter

#endif  // BRIDGE_INTERPRETER_GENERATED_CALL_H_
