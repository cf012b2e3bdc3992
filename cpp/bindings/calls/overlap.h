// A check for outputs that share memory with operands in an unsupported way.
#ifndef BRIDGE_BINDINGS_CALLS_OVERLAP_H_
#define BRIDGE_BINDINGS_CALLS_OVERLAP_H_

#include <cstddef>
#include <cstdint>

#include "bindings/calls/operand.h"

namespace bridge::bindings {

// The memory of a nonempty array: runs of adjacent elements, one for each index of the dimensions.
struct Footprint {
  const char* name;  // "the output", "a row vector"
  const void* data;
  int32_t dtype;
  int64_t cols;  // elements of a run
  int32_t dims;
  const int64_t* size;
  const int64_t* stride;  // in elements
};

// Tells which output may take the place of an operand: the same array, element for element.
class InPlaceRule {
 public:
  virtual bool allows(size_t output, size_t operand) const = 0;

 protected:
  ~InPlaceRule() = default;
};

// Returns false and sets *error if an output shares a byte with another array, unless it takes the
// place of an operand by the rule, or if its own elements share memory (an expanded tensor).
bool check_overlap(const Footprint* outputs, size_t output_count, const Footprint* operands,
                   size_t operand_count, const InPlaceRule& rule, CallError* error);

}  // namespace bridge::bindings

#endif  // BRIDGE_BINDINGS_CALLS_OVERLAP_H_
