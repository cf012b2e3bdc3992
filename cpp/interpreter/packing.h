// A checked program as the parameters of a kernel. Host code.
#ifndef BRIDGE_INTERPRETER_PACKING_H_
#define BRIDGE_INTERPRETER_PACKING_H_

#include <vector>

#include "interpreter/interpreter.h"
#include "interpreter/kernel_program.h"

namespace bridge::interpreter {

struct PackedProgram {
  KernelProgram program;
  std::vector<uint32_t> words;
  size_t shared_bytes;  // of a block
};

// False where the registers of a warp are more than fit into shared memory. Throws std::bad_alloc.
bool pack(const View& view, const bridge_program& call, bool is_double, PackedProgram* packed);

}  // namespace bridge::interpreter

#endif  // BRIDGE_INTERPRETER_PACKING_H_
