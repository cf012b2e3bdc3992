// A cache of checked programs that a thread has run for XLA.
#ifndef BRIDGE_BINDINGS_XLA_KNOWN_PROGRAMS_H_
#define BRIDGE_BINDINGS_XLA_KNOWN_PROGRAMS_H_

#include <cstdint>

namespace bridge::interpreter {
struct KnownProgram;
}

namespace bridge::bindings {

// Returns the program of a bytecode, valid until the thread's next call of this function; nullptr
// if the bytecode is malformed. XLA passes a compiled call the same memory each time it runs, and
// reading a bytecode takes longer than a tiny call. Throws std::bad_alloc.
const interpreter::KnownProgram* known_program(const int32_t* words, int64_t count);

}  // namespace bridge::bindings

#endif  // BRIDGE_BINDINGS_XLA_KNOWN_PROGRAMS_H_
