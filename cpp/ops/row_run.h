// The rows of a run, for the files that are compiled once for each instruction set: include it
// there only.
#ifndef BRIDGE_OPS_ROW_RUN_H_
#define BRIDGE_OPS_ROW_RUN_H_

#include "cpu/tile.h"
#include "ops/row_sum.h"
#include "ops/softmax_kernel.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

// Rows up to this long are computed many at a time, each in one lane of the vectors.
constexpr int64_t kShortCols = 32;
constexpr int64_t kTileRows = kSumTileRows;
inline int64_t visible_cols(const Run& run, int64_t row) {
  const int64_t visible = run.visible + row * run.visible_step;
  return visible < 0 ? 0 : smaller(visible, run.cols);
}

template <class T>
inline __attribute__((always_inline)) T* row_of(const RunOperand& operand, int64_t row) {
  return reinterpret_cast<T*>(operand.data + row * operand.row_bytes);
}

template <class T>
inline void zero(T* to, int64_t count) {
  if (count > 0) memset(to, 0, static_cast<size_t>(count) * sizeof(T));
}

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_OPS_ROW_RUN_H_
