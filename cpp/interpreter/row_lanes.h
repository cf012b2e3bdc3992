// How the rows of a call with column sums are dealt to teams of threads on CUDA. Host and device
// code.
#ifndef BRIDGE_INTERPRETER_ROW_LANES_H_
#define BRIDGE_INTERPRETER_ROW_LANES_H_

#include <stdint.h>

namespace bridge::interpreter {

// A team goes down the rows of a lane of column_sum_tree.h and adds up on the way what it has of
// them; a sixteenth is left for the rest of the tree. Where there are too few lanes for that, each
// of these is a single row, and a kernel of its own adds them.
struct RowLanes {
  int64_t count;       // of all batches
  int64_t of_batch;    // of one
  int64_t batch_rows;  // rows of one
  int32_t rows;        // of a lane, but for the last one of a batch
};

}  // namespace bridge::interpreter

#endif  // BRIDGE_INTERPRETER_ROW_LANES_H_
