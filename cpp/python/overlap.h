// Whether an output shares memory with an operand in a way that the kernels cannot take.
#ifndef BRIDGE_PYTHON_OVERLAP_H_
#define BRIDGE_PYTHON_OVERLAP_H_

#include "operand.h"

namespace bridge::python {

// output.full may be one of the full inputs itself; any other shared byte is an error, and so is an
// output whose own elements share memory (an expanded tensor).
CallError check_overlap(const bridge_bias_gelu& call);

}  // namespace bridge::python

#endif  // BRIDGE_PYTHON_OVERLAP_H_
