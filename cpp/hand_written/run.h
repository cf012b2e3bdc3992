// A run of rows of a row space, to be computed in one thread. The driver of an op passes it to the
// code that is compiled once for each instruction set.
#ifndef BRIDGE_HAND_WRITTEN_RUN_H_
#define BRIDGE_HAND_WRITTEN_RUN_H_

#include <stdint.h>

namespace bridge {

// An operand, from the first row of a run on.
struct RunOperand {
  char* data;
  int64_t row_bytes;  // from one row to the next
};

// Consecutive rows, at equal distances in every operand.
struct Run {
  int64_t rows;
  int64_t cols;
  RunOperand last;  // integers: the last column that each row sees; data is null if all are seen
  int32_t last_dtype;
  bool streams;  // the output is written past the caches
};

}  // namespace bridge

#endif  // BRIDGE_HAND_WRITTEN_RUN_H_
