// The table of all ops.
#include <cmath>
#include <cstdio>
#include <cstring>

#include "bindings/calls/op.h"

namespace bridge::bindings {

extern const Op kProgram;

const Op* const kOps[kOpCount] = {&kProgram};

const Op* find_op(const char* name) {
  for (const Op* op : kOps) {
    if (std::strcmp(op->counts.name, name) == 0) return op;
  }
  return nullptr;
}

namespace {

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

}  // namespace

bool bind(const Op& op, const Arguments& arguments, CallStorage* call, CallError* error) {
  const OpCounts& counts = op.counts;
  const size_t operands = arguments.operand_count;
  if (operands < counts.min_operands || operands > counts.max_operands) {
    return error->set(std::to_string(operands) + " operands, expected " +
                      std::to_string(counts.min_operands) + " to " +
                      std::to_string(counts.max_operands));
  }
  if (!can_have_results(op, arguments.result_count)) {
    return error->set(std::to_string(arguments.result_count) + " results, expected " +
                      std::to_string(counts.results));
  }
  if (arguments.attribute_count != counts.attributes) {
    return error->set(std::to_string(arguments.attribute_count) + " attributes, expected " +
                      std::to_string(counts.attributes));
  }
  return op.bind(arguments, call, error);
}

bool not_whole(const char* name, double value, double lowest, double highest, CallError* error) {
  return error->set(std::string(name) + " is " + number(value) + ", expected a whole number from " +
                    number(lowest) + " to " + number(highest));
}

bool read_finite(const char* name, double value, double* out, CallError* error) {
  *out = value;
  if (std::isfinite(value)) return true;
  return error->set(std::string(name) + " is " + number(value) + ", expected a finite number");
}

}  // namespace bridge::bindings
