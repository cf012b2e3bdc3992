// What was found in the words of the programs that a thread has run for XLA.
#ifndef BRIDGE_BORDER_XLA_KNOWN_PROGRAMS_H_
#define BRIDGE_BORDER_XLA_KNOWN_PROGRAMS_H_

#include <cstdint>

namespace bridge::interpreter {
struct KnownProgram;
}

namespace bridge::border {

// The program of these words, until the thread's next call of this; nullptr where they are
// malformed. XLA hands a compiled call the same words each time it runs, and to read them takes
// longer than a tiny call. Throws std::bad_alloc.
const interpreter::KnownProgram* known_program(const int32_t* words, int64_t count);

}  // namespace bridge::border

#endif  // BRIDGE_BORDER_XLA_KNOWN_PROGRAMS_H_
