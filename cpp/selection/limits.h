// The limits of a choice of columns, the same on CPU and CUDA.
#ifndef BRIDGE_SELECTION_LIMITS_H_
#define BRIDGE_SELECTION_LIMITS_H_

#include <bridge/selection.h>
#include <stdint.h>

#include "drivers/dtypes.h"
#include "selection/order.h"

namespace bridge::selection {

constexpr int64_t kMostChosen = 64;

// Returns the error in a call, or NULL.
inline const char* wrong_with(const bridge_selection& call) {
  const bool is_draw = call.words != nullptr;
  if (call.rows < 0 || call.cols < 0 || call.count < 0 || call.top_k < 0) return "a negative size";
  if (!is_floating(call.dtype)) return "a dtype that is not floating";
  if (call.index_dtype != BRIDGE_INT32 && call.index_dtype != BRIDGE_INT64)
    return "columns that are neither int32 nor int64";
  if (call.index_dtype == BRIDGE_INT32 && call.cols > INT32_MAX)
    return "more columns than int32 has";
  if (call.count > kMostChosen || call.count > call.cols || (is_draw && call.count != 1))
    return "too many columns to choose";
  if (!is_draw) return nullptr;
  if (call.top_k > call.cols) return "a top_k beyond the columns";
  // The comparisons refuse NaN too.
  if (!(call.temperature >= 0) || call.temperature > 1e300) return "a temperature out of range";
  if (!(call.top_p > 0 && call.top_p <= 1)) return "a top_p out of range";
  if (!(call.min_p >= 0 && call.min_p <= 1)) return "a min_p out of range";
  if (call.top_p < 1 && call.cols > kMostTerms) return "too many columns for top_p";
  return nullptr;
}

}  // namespace bridge::selection

#endif  // BRIDGE_SELECTION_LIMITS_H_
