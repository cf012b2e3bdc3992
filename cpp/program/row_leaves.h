// Distribution of the rows of a call with column sums over row teams on CUDA. Host and device code.
#ifndef BRIDGE_PROGRAM_ROW_LEAVES_H_
#define BRIDGE_PROGRAM_ROW_LEAVES_H_

#include <stdint.h>

namespace bridge::interpreter {

// A row team goes down the 16 rows of a leaf of column_sum_tree.h and
// adds its column sums on the way, so that the rest of the tree has a sixteenth of the work. If
// there are too few leaves for all teams, each unit is a single row, and a kernel of its own adds
// the rows.
struct RowLeaves {
  int64_t count;       // of all batches
  int64_t of_batch;    // of one batch
  int64_t batch_rows;  // rows of one batch
  int32_t rows;        // of a leaf; the last leaf of a batch may have fewer
};

}  // namespace bridge::interpreter

#endif  // BRIDGE_PROGRAM_ROW_LEAVES_H_
