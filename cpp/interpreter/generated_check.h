// A generated machine against the interpreter, on random arrays.
#ifndef BRIDGE_INTERPRETER_GENERATED_CHECK_H_
#define BRIDGE_INTERPRETER_GENERATED_CHECK_H_

#include <bridge/bridge.h>

#include <vector>

#include "interpreter/machine.h"

namespace bridge::interpreter {

// BRIDGE_INTERNAL, with the error message, if a bit of any result differs. dtypes: of operands,
// then of results.
bridge_status check_generated(const View& view, const std::vector<int32_t>& words,
                              const int32_t* dtypes, int isa, const MachineTable& machine);

}  // namespace bridge::interpreter

#endif  // BRIDGE_INTERPRETER_GENERATED_CHECK_H_
