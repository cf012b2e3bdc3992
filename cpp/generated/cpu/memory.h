// Sizes, addresses and scratch memory of a program generated as C++. A part of
// generated/cpu/row_driver.h.
#ifndef BRIDGE_GENERATED_CPU_MEMORY_H_
#define BRIDGE_GENERATED_CPU_MEMORY_H_

#include "cpu/stream.h"
#include "cpu/tile.h"
#include "tiles/adjacent_rows.h"
#include "tiles/column_parts.h"
#include "tiles/column_stack.h"
#include "tiles/draws.h"
#include "tiles/memory_parts.h"
#include "tiles/reductions.h"
#include "tiles/streams.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

using namespace interpreter;  // NOLINT: one name for the parts of a program

// A list of numbers known at compile time.
template <int... kNumbers>
struct List {
  static constexpr int kCount = sizeof...(kNumbers);
  template <class Run>
  static inline __attribute__((always_inline)) void each(const Run& run) {
    (run(kNumbers), ...);
  }
};

// A reduction into a row register of the terms that a tile section writes.
struct Reduces {
  int32_t operation;
  int32_t term;
  int32_t to;
  bool is_picked;  // unless rows are flat, Tile_<n>::picks adds the terms
};

// Returns the index of `column` among the `width` columns from `first` on; -1 if it is not among
// them.
inline int64_t place_in_piece(int64_t column, int64_t first, int64_t width) {
  return column >= first && column < first + width ? column - first : -1;
}

// Random words, drawn from the integers in these row registers (kKeep in program.h).
struct Draws {
  int32_t seed, offset, start;
};

// The addresses that a tile section reads and writes, from one element on. Each list has an extra
// entry, because C++ has no arrays of length 0.
template <class P>
struct Places {
  using Real = typename P::Real;
  const char* load[P::kLoadCount + 1];
  char* store[P::kStoreCount + 1];
  Real* term[P::kTerms + 1];
  Real* kept[P::kKept + 1];
  Real* leaf[P::kColumnSums + 1];
  const uint32_t* words[P::kDrawCount + 1];
  const Real* constant;
  const uint32_t* last_dropped;  // of thresholds that are read from a call's bytecode
  const Real* row[P::kRows + 1];
  const int64_t* integer_row[P::kIntegerRows + 1];
  const ColumnRange* range;  // for one row: the chunks that contain the number in a row register
  const int64_t* columns;    // flat rows: of each element
  int64_t col;               // otherwise: of the first element
  // The address of the first element in the next row, and the bytes of a column; nullptr: nothing
  // to prefetch.
  const char* ahead[P::kLoadCount + 1];
  int64_t ahead_bytes[P::kLoadCount + 1];

  // Prefetches columns [begin, end) of the next row, because memory is idle while a section
  // computes on cached data. The asm keeps a compiler from dropping a function that only
  // prefetches.
  __attribute__((always_inline)) void fetch(int64_t begin, int64_t end) const {
    for (int l = 0; l < P::kLoadCount; ++l) {
      if (ahead[l] == nullptr) continue;
      for (int64_t byte = begin * ahead_bytes[l]; byte < end * ahead_bytes[l]; byte += kLine) {
        __builtin_prefetch(ahead[l] + byte, 0, 2);
        asm volatile("");
      }
    }
  }
};

// The scratch memory of a generated machine, and the sizes of its pieces.
template <class P>
struct GeneratedMemory {
  using Real = typename P::Real;

  // The length (elements) of the pieces in which terms are added and strided elements are gathered.
  static constexpr int64_t kPiece = kSumChunk;
  // Shorter rows are computed side by side ("flat"). The limit is a quarter of a chunk if the
  // program has reductions, but no column sums, which read each row once more.
  static constexpr int64_t kFlatCols =
      P::kMostReductions > 0 && P::kColumnSums == 0 ? kSumQuarter : 64;
  static constexpr int64_t kSpread = kPiece + kStep;  // elements of a repeated row value
  // The elements of longer rows between one row section and the next: as many as a first-level
  // cache holds. Tasks that share rows synchronize there, so each of them has more.
  static constexpr int64_t kAtOnce = 2048, kAtOnceOfTask = 16384;
  // Vectors shared by all rows are converted once, unless they have more columns than this.
  static constexpr int64_t kMostConverted = 16384;
  static constexpr int64_t kBytes = sizeof(Real);  // no stream has larger elements

  static bool is_flat(const bridge_program& call) { return call.cols > 0 && call.cols < kFlatCols; }
  static int64_t rows_at_once(const bridge_program& call, const ColumnSplit& split) {
    const int64_t most = is_flat(call)      ? kPiece
                         : split.tasks == 1 ? kAtOnce
                                            : kAtOnceOfTask * split.tasks;
    const int64_t rows = call.cols == 0 ? kPiece : call.cols < most ? most / call.cols : 1;
    return rows < kAdjacentRows && has_blocks(call, split) ? kAdjacentRows : rows;
  }
  // Returns true if blocks of rows are transposed into memory before they are read.
  static bool has_blocks(const bridge_program& call, const ColumnSplit& split) {
    bool has_any = false;
    for (int l = 0; l < P::kLoadCount; ++l)
      has_any |= P::load(l).block == 0 && has_adjacent_rows(call, call.operand[P::load(l).array]);
    return has_any && !is_flat(call) && split.tasks == 1;
  }

  // The memory of one task, if columns are split over tasks.
  struct Task {
    Real* terms;
    char *gathered, *tails;
    uint32_t* words;
    RandomWords* random;

    Task() = default;
    explicit Task(MemoryParts& parts) {
      constexpr int64_t streams = P::kLoadCount + P::kStoreCount;
      terms = parts.take<Real>(P::kTerms * (kPiece + kStep));
      gathered = parts.take<char>(streams * kPiece * kBytes);
      tails = parts.take<char>(streams * kStep * kBytes);
      words = parts.take<uint32_t>(P::kDrawCount * (kPiece + kStep));
      random = parts.take<RandomWords>(P::kDrawCount > 0 ? 1 : 0);
    }
  };

  int64_t row_stride, kept_stride, vector_stride, part_count;
  int64_t block_bytes;  // of a load; 0 without blocks
  char* blocks;
  Real *rows, *kept, *spread, *vectors;
  int64_t *integer_rows, *integer_spread, *columns;
  Real* sums[P::kColumnSums + 1];
  PartReduction<Real>* parts_of_rows;
  MemoryParts tasks;  // where the tasks' memory begins
  Task own;

  GeneratedMemory(MemoryParts& parts, const View&, const bridge_program& call, int64_t row_count,
                  const ColumnSplit& split)
      : tasks(nullptr) {
    const bool flat = is_flat(call);
    const int64_t at_once = smaller(rows_at_once(call, split), row_count);
    row_stride = round_up(at_once);
    kept_stride = flat ? kPiece : at_once * round_up(call.cols);
    part_count = split.tasks > 1 ? split.parts(call) : 0;
    rows = parts.take<Real>(P::kRows * row_stride);
    integer_rows = parts.take<int64_t>(P::kIntegerRows * row_stride);
    kept = parts.take<Real>(P::kKept * kept_stride);
    spread = parts.take<Real>(flat ? P::kRows * kSpread : 0);
    vector_stride = !flat && call.cols <= kMostConverted ? round_up(call.cols) : 0;
    vectors = parts.take<Real>(P::kVectors * vector_stride);
    integer_spread = parts.take<int64_t>(flat ? P::kIntegerRows * kSpread : 0);
    columns = parts.take<int64_t>(flat ? kPiece : 0);
    for (int i = 0; i < P::kColumnSums; ++i)
      sums[i] = parts.take<Real>(ColumnStack<Real>::size(row_count, call.cols));
    parts_of_rows = parts.take<PartReduction<Real>>(P::kMostReductions * at_once * part_count);
    block_bytes = has_blocks(call, split) ? at_once * call.cols * kBytes : 0;
    blocks = parts.take<char>(P::kLoadCount * block_bytes + kStep * kBytes);
    tasks = parts;
    for (int64_t task = 0; task < split.tasks; ++task) own = Task(parts);
  }
  Task of_task(int64_t task) const {
    MemoryParts parts = tasks;
    Task found(parts);
    for (; task > 0; --task) found = Task(parts);
    return found;
  }
  PartReduction<Real>& part_of_row(int64_t row, int reduction, int64_t part) const {
    return parts_of_rows[(row * P::kMostReductions + reduction) * part_count + part];
  }
};

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_GENERATED_CPU_MEMORY_H_
