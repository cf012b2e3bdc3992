// Loads of a block of rows that are adjacent in memory: elements of a column lie side by side, as
// those of a channel do with channels first. Include it only in files compiled once for each
// instruction set.
#ifndef BRIDGE_TILES_ADJACENT_ROWS_H_
#define BRIDGE_TILES_ADJACENT_ROWS_H_

#include "cpu/tile.h"
#include "cpu/vectors.h"
#include "drivers/dtypes.h"
#include "program/machine.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

// The fewest rows of a block: lines of 64 bytes are used as a whole.
constexpr int64_t kAdjacentRows = 16;
// Blocks of more columns leave the nearest caches.
constexpr int64_t kMostAdjacentCols = 1024;

inline bool has_adjacent_rows(const bridge_program& call, const bridge_program_array& array) {
  return call.dims > call.batch_dims && array.stride[call.dims - 1] == 1 && array.col_stride > 1 &&
         call.cols <= kMostAdjacentCols;
}

// Transposes columns that are `step` elements apart to `rows` rows of `cols` elements.
template <class T>
void load_adjacent_rows(const T* from, int64_t step, int64_t rows, int64_t cols, T* to) {
  int64_t whole_rows = 0, whole_cols = 0;
  if constexpr (sizeof(T) == sizeof(float)) {  // squares move bits: elements may be any 32 bits
    constexpr int kSide = kLanes<float>;
    whole_rows = rows / kSide * kSide, whole_cols = cols / kSide * kSide;
    for (int64_t j = 0; j < whole_cols; j += kSide)
      for (int64_t i = 0; i < whole_rows; i += kSide) {
        Vector<float> lines[kSide];
        BRIDGE_UNROLL
        for (int k = 0; k < kSide; ++k)
          memcpy(&lines[k], from + (j + k) * step + i, sizeof lines[k]);
        transpose<float>(lines);
        BRIDGE_UNROLL
        for (int k = 0; k < kSide; ++k) memcpy(to + (i + k) * cols + j, &lines[k], sizeof lines[k]);
      }
  }
  for (int64_t j = 0; j < cols; ++j)
    for (int64_t i = j < whole_cols ? whole_rows : 0; i < rows; ++i)
      to[i * cols + j] = from[j * step + i];
}

// The same, converted to the arithmetic type.
template <class Real>
void load_adjacent_rows_as(int32_t dtype, const char* from, int64_t step, int64_t rows,
                           int64_t cols, Real* to) {
  constexpr int64_t kMost = 64;
  alignas(64) Real line[kMost];
  for (int64_t first = 0; first < rows; first += kMost) {
    const int64_t count = smaller(kMost, rows - first);
    for (int64_t j = 0; j < cols; ++j) {
      load_run(dtype, from + (j * step + first) * bridge::element_bytes(dtype), line, count);
      for (int64_t i = 0; i < count; ++i) to[(first + i) * cols + j] = line[i];
    }
  }
}

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_TILES_ADJACENT_ROWS_H_
