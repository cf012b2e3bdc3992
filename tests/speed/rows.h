// What kernel_speed times: one row for each kind of call, dtype and shape, and the calls
// themselves.
#ifndef BRIDGE_TESTS_SPEED_ROWS_H_
#define BRIDGE_TESTS_SPEED_ROWS_H_

#include <bridge/bridge.h>
#include <stdint.h>

#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "operands.h"

namespace bridge::speed {

struct Copy {
  const void* from;
  void* to;
  int64_t bytes;
  bool by_kernel;  // otherwise by the driver
};

using AnyCall = std::variant<Copy, bridge_softmax, bridge_softmax_derivative>;

// For a copy there is one head in one batch, with a query for each row.
struct Shape {
  int64_t batch;
  int64_t heads;
  int64_t queries;
  int64_t cols;

  int64_t rows() const { return batch * heads * queries; }
  int64_t elements() const { return rows() * cols; }
};

struct Row {
  std::string op;
  std::string kind;
  std::string dtype;
  int64_t cols;
  int64_t few_rows;  // 0: as many as an array of the wanted size has
  bool is_attention;
  int64_t element_bytes;  // of the first operand
  int rank;               // the lower, the sooner
  std::function<AnyCall(Operands&, const Shape&)> make;

  bool is_copy() const { return op == "copy"; }
  std::string name() const;
  // With arrays of about so many bytes.
  Shape shape(int64_t array_bytes) const;
};

// In the order in which they are to be timed: copies, then every op at one shape, then what is seen
// less often.
std::vector<Row> all_rows();

// The names of those that are worth a look with a profiler.
std::vector<std::string> profiled_rows();

}  // namespace bridge::speed

#endif  // BRIDGE_TESTS_SPEED_ROWS_H_
