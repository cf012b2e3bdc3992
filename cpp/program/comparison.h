// Comparison of two ways to run a program, on random arrays. Host code.
#ifndef BRIDGE_PROGRAM_COMPARISON_H_
#define BRIDGE_PROGRAM_COMPARISON_H_

#include <bridge/bridge.h>

#include <functional>
#include <string>
#include <vector>

#include "program/program.h"

namespace bridge::interpreter {

// The memory of the operands and results of a call, one vector for each array.
using Memory = std::vector<std::vector<char>>;
// Runs a call whose arrays lie in `memory`; returns "" or an error message.
using RunCall = std::function<std::string(const bridge_program& call, Memory& memory)>;

// Returns "" if every bit of every result is the same, otherwise a message. `dtypes`: operands,
// then results. Throws std::bad_alloc.
std::string compare(const View& view, const std::vector<int32_t>& words, const int32_t* dtypes,
                    const RunCall& reference, const RunCall& other);

}  // namespace bridge::interpreter

#endif  // BRIDGE_PROGRAM_COMPARISON_H_
