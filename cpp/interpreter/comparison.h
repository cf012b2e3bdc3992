// Two ways to run a program, compared on random arrays. Host code.
#ifndef BRIDGE_INTERPRETER_COMPARISON_H_
#define BRIDGE_INTERPRETER_COMPARISON_H_

#include <bridge/bridge.h>

#include <functional>
#include <string>
#include <vector>

#include "interpreter/program.h"

namespace bridge::interpreter {

// Of the operands and results of a call, each in a piece of its own.
using Memory = std::vector<std::vector<char>>;
// Runs a call whose arrays lie in this memory; "" or what went wrong.
using RunCall = std::function<std::string(const bridge_program& call, Memory& memory)>;

// Why the one cannot stand in for the other; "" where every bit of every result is the same.
// dtypes: of operands, then of results. Throws std::bad_alloc.
std::string compare(const View& view, const std::vector<int32_t>& words, const int32_t* dtypes,
                    const RunCall& reference, const RunCall& other);

}  // namespace bridge::interpreter

#endif  // BRIDGE_INTERPRETER_COMPARISON_H_
