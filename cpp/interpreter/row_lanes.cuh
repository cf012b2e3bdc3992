// The rows of one unit of RowLanes (row_lanes.h): a leaf of the column sums, or a single row.
#ifndef BRIDGE_INTERPRETER_ROW_LANES_CUH_
#define BRIDGE_INTERPRETER_ROW_LANES_CUH_

#include "cuda/division.h"
#include "interpreter/row_lanes.h"

namespace bridge::interpreter {

struct LaneOfRows {
  int64_t first;  // first row, counted over all batches
  int32_t count;  // of rows

  BRIDGE_DEVICE LaneOfRows(const RowLanes& lanes, int64_t number) {
    const int64_t batch = simt::divide(number, lanes.of_batch);
    const int64_t before = (number - batch * lanes.of_batch) * lanes.rows;
    const int64_t left = lanes.batch_rows - before;
    first = batch * lanes.batch_rows + before;
    count = left < lanes.rows ? static_cast<int32_t>(left) : lanes.rows;
  }
};

}  // namespace bridge::interpreter

#endif  // BRIDGE_INTERPRETER_ROW_LANES_CUH_
