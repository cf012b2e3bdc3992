// The rows of a run. Include this only in files that are compiled once for each instruction set.
#ifndef BRIDGE_HAND_WRITTEN_RUN_ROWS_H_
#define BRIDGE_HAND_WRITTEN_RUN_ROWS_H_

#include "cpu/stream.h"
#include "cpu/tile.h"
#include "drivers/integers.h"
#include "drivers/rows/row_sums.h"
#include "hand_written/run.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

// Rows up to this length are computed many at a time, each in one lane of the vectors.
constexpr int64_t kShortCols = 32;
constexpr int64_t kTileRows = kSumTileRows;

template <class T>
inline __attribute__((always_inline)) T* row_of(const RunOperand& operand, int64_t row) {
  return reinterpret_cast<T*>(operand.data + row * operand.row_bytes);
}

// A function of its own, because its cases would be in the way of the usual ones.
__attribute__((noinline)) int64_t other_integer(int32_t dtype, const void* at) {
  return interpreter::load_integer(dtype, at);
}

inline int64_t visible_cols(const Run& run, int64_t row) {
  if (run.last.data == nullptr) return run.cols;
  const int64_t* const at = row_of<const int64_t>(run.last, row);
  const int64_t last = run.last_dtype == BRIDGE_INT64 ? *at : other_integer(run.last_dtype, at);
  return last < 0 ? 0 : smaller(last, run.cols - 1) + 1;
}

// Writes a row of `cols` columns. write(to, begin, count) writes the columns before `visible`,
// either in whole pieces of kSumChunk or all at once; the other columns are 0. If the run streams,
// `to` is a buffer, from which whole lines go past the caches.
template <class T, class Write>
inline void write_row(const Run& run, T* output, int64_t visible, int64_t cols,
                      const Write& write) {
  constexpr int64_t bytes = sizeof(T);
  if (!run.streams) {
    if (visible > 0) write(output, int64_t{0}, visible);
    if (visible < cols) memset(output + visible, 0, static_cast<size_t>((cols - visible) * bytes));
    return;
  }
  alignas(64) static const T zeros[kSumChunk] = {};
  alignas(64) T piece[kSumChunk];
  for (int64_t begin = 0; begin < cols; begin += kSumChunk) {
    const int64_t columns = smaller(kSumChunk, cols - begin);
    const int64_t count = smaller(columns, visible - begin);
    if (count > 0) {
      write(piece, begin, count);
      memset(piece + count, 0, static_cast<size_t>((columns - count) * bytes));
    }
    stream(output + begin, count > 0 ? piece : zeros, columns * bytes);
  }
}

template <class T>
inline void zero(const Run& run, T* to, int64_t count) {
  write_row(run, to, 0, count, [](T*, int64_t, int64_t) {});
}

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_HAND_WRITTEN_RUN_ROWS_H_
