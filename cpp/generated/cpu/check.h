// Comparison of a generated machine with the interpreter, on random arrays.
#ifndef BRIDGE_GENERATED_CPU_CHECK_H_
#define BRIDGE_GENERATED_CPU_CHECK_H_

#include <bridge/bridge.h>

#include <vector>

#include "program/machine.h"

namespace bridge::interpreter {

// Returns BRIDGE_INTERNAL and sets the error message if any bit of a result differs. `dtypes`:
// operands, then results.
bridge_status check_generated(const View& view, const std::vector<int32_t>& words,
                              const int32_t* dtypes, int isa, const MachineTable& machine);

}  // namespace bridge::interpreter

#endif  // BRIDGE_GENERATED_CPU_CHECK_H_
