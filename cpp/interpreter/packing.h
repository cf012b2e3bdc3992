// A validated program, packed into the parameters of a kernel. Host code.
#ifndef BRIDGE_INTERPRETER_PACKING_H_
#define BRIDGE_INTERPRETER_PACKING_H_

#include <vector>

#include "interpreter/kernel_program.h"
#include "program/interpreter.h"

namespace bridge::interpreter {

struct PackedProgram {
  KernelProgram program;
  std::vector<uint32_t> words;
  size_t shared_bytes;  // of a block
};

// Returns false if the registers of one warp do not fit into shared memory. Throws std::bad_alloc.
bool pack(const View& view, const bridge_program& call, bool is_double, PackedProgram* packed);

}  // namespace bridge::interpreter

#endif  // BRIDGE_INTERPRETER_PACKING_H_
