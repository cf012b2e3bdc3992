// The rows of one unit of RowLeaves (row_leaves.h): a leaf of the column sums, or a single row.
#ifndef BRIDGE_PROGRAM_ROW_LEAVES_CUH_
#define BRIDGE_PROGRAM_ROW_LEAVES_CUH_

#include "cuda/division.h"
#include "program/row_leaves.h"

namespace bridge::interpreter {

struct RowsOfLeaf {
  int64_t first;  // first row, counted over all batches
  int32_t count;  // of rows

  BRIDGE_DEVICE RowsOfLeaf(const RowLeaves& leaves, int64_t number) {
    const int64_t batch = simt::divide(number, leaves.of_batch);
    const int64_t before = (number - batch * leaves.of_batch) * leaves.rows;
    const int64_t left = leaves.batch_rows - before;
    first = batch * leaves.batch_rows + before;
    count = left < leaves.rows ? static_cast<int32_t>(left) : leaves.rows;
  }
};

}  // namespace bridge::interpreter

#endif  // BRIDGE_PROGRAM_ROW_LEAVES_CUH_
