// Launch of the generated kernels of a program: selects the kernel for a call, and the numbers of
// blocks, warps and bytes of shared memory.
#include <bridge/bridge.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "cuda/last_error.h"
#include "cuda/simt.h"
#include "drivers/columns/column_sum_tree.h"
#include "drivers/columns/column_sums_cuda.h"
#include "drivers/integers.h"
#include "drivers/rows/row_sum_tree.h"
#include "generated/cuda/hand_written.h"
#include "generated/cuda/kernels.h"
#include "program/interpreter.h"

namespace bridge::interpreter {
namespace {

constexpr int kMostWarps = kGeneratedThreads / simt::kWarpThreads;
constexpr int64_t kEnoughBlocks = 2 * simt::kMultiprocessors;
constexpr int64_t kEnoughWarps = 16 * simt::kMultiprocessors;  // as many as registers have room for
constexpr int64_t kEnoughThreads = 4 * simt::kMultiprocessors * simt::kWarpThreads;
constexpr int kWideThreads = 2 * simt::kWarpThreads;  // of a block with a whole row in each warp
constexpr int kBlocksOfMany = 4;  // of a row, if many rows are read again: more took longer

std::atomic<int64_t> calls{0};

bool is_short(GeneratedKernelKind kind) {
  return kind == kShortAligned || kind == kShortAny || kind == kShortWhole;
}

// Returns true for an array with a number in each column.
bool has_columns(Role role) {
  return role != Role::per_row && role != Role::label && role != Role::integer &&
         role != Role::per_block;
}

// Returns true if every row of the array can be read in vectors from its first column on. Halves
// that alternate are read together.
bool is_aligned(const bridge_program_array& array, const bridge_program& call, int32_t vector) {
  const int64_t size = element_bytes(array.dtype), each = array.pairs != 0 ? 2 : 1;
  const int64_t bytes = std::min<int64_t>(16, each * vector * size);
  bool is = array.col_stride == each && reinterpret_cast<uintptr_t>(array.data) % bytes == 0;
  for (int32_t d = 0; d < call.dims; ++d)
    is = is && (call.size[d] == 1 || array.stride[d] * size % bytes == 0);
  return is;
}

// The arrays with rows that a kernel may read and write in vectors of `vector` columns.
struct Vectors {
  uint64_t bits[2] = {};
  bool are_all;  // all arrays are aligned, and rows consist of whole vectors

  Vectors(const bridge_program& call, const View& view, int32_t vector)
      : are_all(call.cols % vector == 0) {
    const bool are_whole = are_all;
    const auto add = [&](int32_t number, const bridge_program_array& array, Role role) {
      if (!has_columns(role)) return;
      const bool is_apart = role == Role::halves && array.pairs == 0;
      const bool is = is_aligned(array, call, vector) && (!is_apart || are_whole);
      bits[number / 64] |= uint64_t{is} << number % 64;
      are_all = are_all && is;
    };
    for (int32_t i = 0; i < call.operands; ++i) add(i, call.operand[i], view.operand_role(i));
    for (int32_t i = 0; i < call.results; ++i) {
      const Role role = view.result_role(i);
      // Column sums are not written by these kernels.
      if (role != Role::row) add(call.operands + i, call.result[i], role);
    }
  }
};

// Returns the bytes of one row in all arrays that differ from row to row.
int64_t row_bytes(const bridge_program& call, const View& view) {
  int64_t bytes = 0;
  const auto add = [&](const bridge_program_array& array, Role role) {
    bool has_own = false;
    for (int32_t d = 0; d < call.dims; ++d)
      has_own = has_own || (call.size[d] > 1 && array.stride[d] != 0);
    if (has_own && has_columns(role)) bytes += call.cols * element_bytes(array.dtype);
  };
  for (int32_t i = 0; i < call.operands; ++i) add(call.operand[i], view.operand_role(i));
  for (int32_t i = 0; i < call.results; ++i) add(call.result[i], view.result_role(i));
  return bytes;
}

// Returns how many blocks share a row. There is more than one for three reasons: a resident row
// needs the registers of several; if rows are few, more multiprocessors have a part of one, of at
// least kLeastWarps warps; if rows are many and are read again, the rows in flight on all
// multiprocessors fit in the L2 cache.
int blocks_of_row(const GeneratedKernels& kernels, const bridge_program& call, const View& view,
                  GeneratedKernelKind kind, int64_t chunks, int64_t rows) {
  constexpr int kLeastWarps = kMostWarps / 2;
  const int most = kernels.most_blocks[kind];
  int blocks = 1;
  while (kind == kResidentAligned && blocks < most && int64_t{blocks} * kMostWarps < chunks)
    blocks *= 2;
  const bool is_read_again = kind == kLongAligned && kernels.meetings > 1 && !has_column_sums(view);
  const int64_t bytes = is_read_again ? row_bytes(call, view) : 0;
  while (blocks < most && 2 * blocks * kLeastWarps <= chunks &&
         (2 * rows * blocks <= kEnoughBlocks ||
          (blocks < kBlocksOfMany && blocks * simt::kRowBytes < bytes)))
    blocks *= 2;
  return blocks;
}

// Returns the threads of a warp that share a row.
int threads_of_row(const GeneratedFacts& facts, const bridge_program& call, const View& view,
                   GeneratedKernelKind kind) {
  if (kind == kShortWhole) return whole_group(call.cols, facts.vector, has_column_sums(view));
  return is_short(kind) ? kShortGroup : simt::kWarpThreads;
}

// Returns the bytes of shared memory that `threads` threads need for their column sums, while they
// go down the rows of a leaf, and for staged operands.
size_t kept_bytes(const GeneratedFacts& facts, const bridge_program& call, const View& view,
                  GeneratedKernelKind kind, int threads) {
  if (kind != kResidentAligned && !is_short(kind)) return 0;
  const int64_t columns =
      is_short(kind) ? int64_t{kShortVectors} * facts.vector : kSumChunk / simt::kWarpThreads;
  return static_cast<size_t>((column_sum_count(view) + facts.staged) * columns * threads) *
         (is_double(call) ? sizeof(double) : sizeof(float));
}

// Returns how many chunks of each warp fit in the shared memory that a block has left, and adds
// their bytes to the launch. As many blocks as before must fit on a multiprocessor.
int hold(const GeneratedKernels& kernels, GeneratedLaunch* launch) {
  if (launch->kind != kLongAligned || launch->shared_bytes >= kernels.held_bytes) return 0;
  const auto turn_bytes =
      static_cast<size_t>(kernels.facts.held) * (launch->threads / simt::kWarpThreads);
  const size_t held = std::min(static_cast<size_t>(launch->turns),
                               (kernels.held_bytes - launch->shared_bytes) / turn_bytes);
  launch->shared_bytes += held * turn_bytes;
  return static_cast<int>(held);
}

// Plans the launch of a kernel over rows, or over leaves of rows. Returns false if shared memory,
// or the largest grid, is too small.
bool plan_rows(const GeneratedKernels& kernels, const bridge_program& call, const View& view,
               GeneratedKernelKind kind, int64_t units, GeneratedLaunch* launch) {
  const int64_t chunks =  // or groups of kWideChunks chunks
      columns::ceil_divide(call.cols, kSumChunk * (kind == kWideAligned ? kWideChunks : 1));
  const int rows = simt::kWarpThreads / threads_of_row(kernels.facts, call, view, kind);
  const int blocks = blocks_of_row(kernels, call, view, kind, chunks, units);
  launch->kind = kind;
  launch->blocks_of_row = blocks;
  launch->warps = static_cast<int>(
      std::min<int64_t>(std::max<int64_t>(chunks, 1), int64_t{kMostWarps} * blocks));
  launch->threads = (launch->warps + blocks - 1) / blocks * simt::kWarpThreads;
  launch->turns = static_cast<int>((chunks + launch->warps - 1) / launch->warps);
  const auto shared_bytes = [&] {
    const auto cells = static_cast<size_t>(
        launch->warps > 1 ? kernels.facts.cells * cell_step(static_cast<int>(chunks)) * 8 : 0);
    return cells + kept_bytes(kernels.facts, call, view, kind, launch->threads);
  };
  int64_t teams = 1;
  if (launch->warps == 1) {
    // Few rows get small blocks, to give all multiprocessors some. Warps with much work get small
    // blocks too: otherwise some would wait long for the last one.
    launch->threads = kind == kWideAligned ? kWideThreads : kGeneratedThreads;
    const auto teams_of = [&] { return launch->threads / simt::kWarpThreads * rows; };
    while (launch->threads > simt::kWarpThreads &&
           (columns::ceil_divide(units, teams_of()) < kEnoughBlocks ||
            shared_bytes() > kernels.shared_bytes[kind])) {
      launch->threads /= 2;
    }
    teams = teams_of();
  }
  launch->shared_bytes = shared_bytes();
  launch->held_turns = hold(kernels, launch);
  launch->blocks = columns::ceil_divide(units, teams) * blocks;
  return launch->shared_bytes <= kernels.shared_bytes[kind] && launch->blocks <= INT32_MAX;
}

// Returns true if each short row gets only as many threads as hold all of it. That needs enough
// rows to give each scheduler a warp; fewer rows finish sooner with more threads.
bool may_be_whole(const GeneratedKernels& kernels, const bridge_program& call, const View& view,
                  int64_t rows) {
  if (!kernels.facts.has(kShortWhole)) return false;
  const int group = threads_of_row(kernels.facts, call, view, kShortWhole);
  return group > 0 && (!kernels.are_added || rows * group >= kEnoughThreads);
}

// Returns true if each warp gets several chunks of a row. Then no column needs a bounds check, all
// warps of a row have about the same share of it, and there are enough rows for all
// multiprocessors.
bool may_be_wide(const GeneratedKernels& kernels, const bridge_program& call, int64_t rows) {
  const int64_t chunks = columns::ceil_divide(call.cols, kSumChunk);
  const int64_t warps = columns::ceil_divide(chunks, int64_t{kWideChunks});
  if (!kernels.facts.has(kWideAligned) || chunks < 2 || warps > kMostWarps ||
      call.cols % (int64_t{simt::kWarpThreads} * kernels.facts.vector) != 0) {
    return false;
  }
  const bool are_alike = warps == 1 || 3 * warps * kWideChunks <= 4 * chunks;
  return !kernels.are_added || (are_alike && rows * warps >= kEnoughWarps);
}

GeneratedConstant generated_constant(const bridge_program& call, int32_t i) {
  GeneratedConstant constant{};
  memcpy(&constant.number, call.code + kHeaderWords + 2 * i, sizeof constant.number);
  constant.single = static_cast<float>(constant.number);
  if (constant.number >= 1 && constant.number <= 4294967296.0)
    constant.last_dropped = static_cast<uint32_t>(static_cast<int64_t>(constant.number) - 1);
  return constant;
}

}  // namespace

bool plan_generated(const GeneratedKernels& kernels, const bridge_program& call, const View& view,
                    const RowLeaves& leaves, GeneratedLaunch* launch) {
  const GeneratedFacts& facts = kernels.facts;
  const int64_t chunks = (call.cols + kSumChunk - 1) / kSumChunk;
  if (chunks > kMostGeneratedChunks) return false;
  if (call.dims > 0 && call.size[call.dims - 1] > UINT32_MAX) return false;  // RowPlaces' limit
  const Vectors vectors(call, view, facts.vector);
  memcpy(launch->vectors, vectors.bits, sizeof launch->vectors);
  const bool is_all_aligned = vectors.are_all;
  const Counts counts = counts_of(call);
  launch->leaves = leaves;
  launch->blocks_y = launch->blocks_of_row = 1;
  const int64_t block_cols = int64_t{simt::kWarpThreads} * facts.vector;
  // kColumnsAligned takes the equally spaced rows of a single batch, if they fill at least half a
  // block. A block has 128 rows, so a program without column sums takes it only if rows are many,
  // or for verification.
  const int64_t blocks_x = columns::ceil_divide(call.cols, block_cols);
  const int64_t blocks_y = std::min(chunk_count(counts.rows), simt::kMaxGridYZ);
  if (facts.has(kColumnsAligned) && is_all_aligned && counts.batches == 1 &&
      call.dims > call.batch_dims && call.size[call.dims - 1] == counts.rows &&
      call.cols >= block_cols / 2 &&
      (has_column_sums(view) ||
       (counts.rows > kLeafRows && (blocks_x * blocks_y >= kEnoughBlocks || !kernels.are_added)))) {
    launch->kind = kColumnsAligned;
    launch->warps = 1;
    launch->threads = kGeneratedThreads;
    launch->shared_bytes = 0;
    launch->turns = launch->held_turns = 0;
    launch->blocks = blocks_x;
    launch->blocks_y = blocks_y;
    return true;
  }
  const int64_t units = has_column_sums(view) ? leaves.count : counts.batches * counts.rows;
  GeneratedKernelKind kind = is_all_aligned ? kLongAligned : kLongAny;
  // The blocks of a cluster keep a row with more chunks than one block has warps. One
  // synchronization of the cluster for each row costs less than reading the row again. Two cost
  // more, because the last part that was read is still in a cache (measured on an H100).
  const bool may_share = kernels.meetings == 1 || has_column_sums(view);
  const int64_t most_blocks = may_share ? kernels.most_blocks[kResidentAligned] : 1;
  const bool stays =
      is_all_aligned && facts.has(kResidentAligned) && chunks <= most_blocks * int64_t{kMostWarps};
  if (call.cols <= kShortGroup * kShortVectors * facts.vector) {
    kind = !is_all_aligned                            ? kShortAny
           : may_be_whole(kernels, call, view, units) ? kShortWhole
                                                      : kShortAligned;
  } else if (is_all_aligned && may_be_wide(kernels, call, units)) {
    kind = kWideAligned;
  } else if (stays) {
    kind = kResidentAligned;
  }
  if (plan_rows(kernels, call, view, kind, units, launch)) return true;
  // A kernel for long rows keeps no column sums in shared memory.
  kind = is_all_aligned ? kLongAligned : kLongAny;
  return plan_rows(kernels, call, view, kind, units, launch);
}

const char* launch_generated(const GeneratedKernels& kernels, const GeneratedLaunch& launch,
                             const bridge_program& call, void* sums, int64_t sums_step,
                             void* stream) {
  const Counts counts = counts_of(call);
  GeneratedSpace space{};
  space.rows = counts.batches * counts.rows;
  space.batch_rows = counts.rows;
  space.index_cols = call.index_cols;
  memcpy(space.vectors, launch.vectors, sizeof space.vectors);
  space.sums = sums;
  space.sums_step = sums_step;
  space.cols = static_cast<int32_t>(call.cols);
  space.dims = call.dims;
  space.warps = launch.warps;
  space.threads = launch.threads;
  space.turns = launch.turns;
  space.held_turns = launch.held_turns;
  space.leaves = launch.leaves;
  while (1 << space.blocks_log2 < launch.blocks_of_row) ++space.blocks_log2;
  const int32_t more = BRIDGE_MAX_DIMS - call.dims;  // leading dimensions of size 1
  for (int32_t d = 0; d < BRIDGE_MAX_DIMS; ++d) space.size[d] = d < more ? 1 : call.size[d - more];
  const auto count = static_cast<size_t>(call.operands + call.results);
  using Params = GeneratedParams<1, 1>;
  constexpr size_t kFirst = offsetof(Params, array);
  const size_t constants = kFirst + count * sizeof(bridge_program_array);
  const auto constant_count = static_cast<size_t>(std::max(kernels.facts.constants, 1));
  std::vector<int64_t> params((constants + constant_count * sizeof(GeneratedConstant)) /
                              sizeof(int64_t));
  char* const bytes = reinterpret_cast<char*>(params.data());
  memcpy(bytes, &space, sizeof space);
  for (size_t i = 0; i < count; ++i) {
    const auto number = static_cast<int32_t>(i);
    bridge_program_array array =
        number < call.operands ? call.operand[number] : call.result[number - call.operands];
    const bridge_program_array given = array;
    for (int32_t d = 0; d < BRIDGE_MAX_DIMS; ++d)
      array.stride[d] = d < more ? 0 : given.stride[d - more];
    memcpy(bytes + kFirst + i * sizeof array, &array, sizeof array);
  }
  for (int32_t i = 0; i < kernels.facts.constants; ++i) {
    const GeneratedConstant constant = generated_constant(call, i);
    memcpy(bytes + constants + static_cast<size_t>(i) * sizeof constant, &constant,
           sizeof constant);
  }
  simt::Grid grid;
  grid.cluster = launch.blocks_of_row;
  grid.x = launch.blocks;
  grid.y = launch.blocks_y;
  grid.threads = launch.threads;
  if (kernels.are_added) calls.fetch_add(1, std::memory_order_relaxed);
  return simt::launch_found(kernels.kernel[launch.kind], grid, launch.shared_bytes, stream, bytes);
}

}  // namespace bridge::interpreter

extern "C" BRIDGE_EXPORT int64_t bridge_program_cuda_added_calls(void) {
  return bridge::interpreter::calls.load(std::memory_order_relaxed) +
         bridge::interpreter::hand_kernel_calls();
}
