// A run of rows of a row space: what an op's driver hands to the code that is compiled once for
// each instruction set, to be computed in one thread.
#ifndef BRIDGE_WALKS_ROWS_RUN_H_
#define BRIDGE_WALKS_ROWS_RUN_H_

#include <stdint.h>

namespace bridge {

// An operand from the first row of a run on.
struct RunOperand {
  char* data;
  int64_t row_bytes;  // from one row to the next
};

// Rows one after another, equally far apart in every operand.
struct Run {
  int64_t rows;
  int64_t cols;
  // How many columns of the first row the causal rule leaves visible, perhaps below 0 or above
  // cols, and how many more of each next row: 1, or 0 without the rule.
  int64_t visible;
  int64_t visible_step;
  bool streams;  // the output is written past the caches
};

}  // namespace bridge

#endif  // BRIDGE_WALKS_ROWS_RUN_H_
