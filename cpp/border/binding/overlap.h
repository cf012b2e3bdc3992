// Whether an output shares memory with an operand in a way that the kernels cannot take.
#ifndef BRIDGE_BORDER_BINDING_OVERLAP_H_
#define BRIDGE_BORDER_BINDING_OVERLAP_H_

#include <cstddef>
#include <cstdint>

#include "border/binding/operand.h"

namespace bridge::border {

// Where an array that is not empty lies: runs of adjacent elements, numbered by dimensions.
struct Footprint {
  const char* name;  // "the output", "a row vector"
  const void* data;
  int32_t dtype;
  int64_t cols;  // elements of a run
  int32_t dims;
  const int64_t* size;
  const int64_t* stride;  // in elements
  bool may_be_output;     // an operand whose own memory the first output may be
};

// The first output may be an operand that allows it; any other shared byte is an error, and so is
// an output whose own elements share memory (an expanded tensor).
bool check_overlap(const Footprint* outputs, size_t output_count, const Footprint* operands,
                   size_t operand_count, CallError* error);

}  // namespace bridge::border

#endif  // BRIDGE_BORDER_BINDING_OVERLAP_H_
