// The table of all ops.
#include <cstdio>
#include <cstring>

#include "op.h"

namespace bridge::python {

extern const Op kBiasGelu, kSoftmax, kSoftmaxDerivative, kBiasDropoutAdd;

const Op* const kOps[kOpCount] = {&kBiasGelu, &kSoftmax, &kSoftmaxDerivative, &kBiasDropoutAdd};

const Op* find_op(const char* name) {
  for (const Op* op : kOps) {
    if (std::strcmp(op->counts.name, name) == 0) return op;
  }
  return nullptr;
}

namespace {

CallError wrong_count(const char* what, size_t got, size_t expected) {
  return {std::to_string(got) + " " + what + ", expected " + std::to_string(expected)};
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

}  // namespace

CallError bind(const Op& op, const Arguments& arguments, CallRoom* call) {
  const OpCounts& counts = op.counts;
  if (arguments.operand_count < counts.min_operands ||
      arguments.operand_count > counts.max_operands) {
    return {std::to_string(arguments.operand_count) + " operands, expected " +
            std::to_string(counts.min_operands) + " to " + std::to_string(counts.max_operands)};
  }
  if (arguments.result_count != counts.results) {
    return wrong_count("results", arguments.result_count, counts.results);
  }
  if (arguments.attribute_count != counts.attributes) {
    return wrong_count("attributes", arguments.attribute_count, counts.attributes);
  }
  return op.bind(arguments, call);
}

CallError not_whole(const char* name, double value, double lowest, double highest) {
  return {std::string(name) + " is " + number(value) + ", expected a whole number from " +
          number(lowest) + " to " + number(highest)};
}

CallError not_finite(const char* name, double value) {
  return {std::string(name) + " is " + number(value) + ", expected a finite number"};
}

}  // namespace bridge::python
