// Divides the rows of a row space into runs: consecutive rows in its last dimension.
#ifndef BRIDGE_DRIVERS_ROWS_RUN_DRIVER_H_
#define BRIDGE_DRIVERS_ROWS_RUN_DRIVER_H_

#include <bridge/bridge.h>

#include "cpu/parallel.h"
#include "drivers/rows/row_operands.h"

namespace bridge {

// Calls visit(rows, query, offset) for each run of the rows [begin, end), counted row-major: `rows`
// rows of the last dimension from its index `query` on. offset(stride) returns the position, in
// elements, of the run's first row in an operand with these strides.
template <class Visit>
void for_each_run(const bridge_row_space& space, int64_t begin, int64_t end, const Visit& visit) {
  const int last = space.dims - 1;
  const int64_t length = space.dims == 0 ? 1 : space.size[last];
  while (begin < end) {
    int64_t index[BRIDGE_MAX_DIMS] = {};
    int64_t rest = begin;
    for (int d = last; d >= 0; --d) {
      index[d] = rest % space.size[d];
      rest /= space.size[d];
    }
    const int64_t query = space.dims == 0 ? 0 : index[last];
    const int64_t rows = end - begin < length - query ? end - begin : length - query;
    visit(rows, query, [&](const int64_t* stride) {
      int64_t offset = 0;
      for (int d = 0; d <= last; ++d) offset += index[d] * stride[d];
      return offset;
    });
    begin += rows;
  }
}

}  // namespace bridge

#endif  // BRIDGE_DRIVERS_ROWS_RUN_DRIVER_H_
