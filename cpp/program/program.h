// The format of a program: 32-bit words, the bytecode, as bridge/lang/bytecode.py writes them.
//
//   header          the numbers of Header, in its order
//   constants       floating constants, two words each: a double, the low word first
//   integers        two words each: an int64
//   operand roles   one word each
//   result roles    one word each
//   sections        for each phase, the number of instructions of its row section and of its tile
//                   section; then of the row section after the last phase
//   instructions    kInstructionWords each, in this order
//
// A row section runs once for several rows, on row registers, which hold a number for each row. A
// tile section runs for each piece of these rows, on tile registers, which hold a number for each
// element. The result of a reduction in a tile section is known after the section. Floating
// constant i is in tile register i and in row register i from the start, and so is integer i among
// the integer registers. A truth value is the number 0 or 1.
#ifndef BRIDGE_PROGRAM_PROGRAM_H_
#define BRIDGE_PROGRAM_PROGRAM_H_

#include <bridge/bridge.h>
#include <stdint.h>
#include <string.h>

#include "program/operations.h"

namespace bridge::interpreter {

struct Header {
  int32_t version;
  int32_t operands;
  int32_t results;
  int32_t tiles;  // tile registers of floating numbers, then of integers; the same for rows
  int32_t integer_tiles;
  int32_t rows;
  int32_t integer_rows;
  int32_t constants;
  int32_t integers;
  int32_t reductions;
  int32_t phases;
};
constexpr int32_t kHeaderWords = sizeof(Header) / sizeof(int32_t);

// The shape of an operand or a result, in the order of ROLES in bridge/lang/bytecode.py.
enum class Role : int32_t {
  full,     // a number for each element
  row,      // a result: the sum over the rows of a batch
  per_row,  // a number for each row
  label,    // an integer for each row
  table,
  mask,
  halves,     // two numbers for each element: the second follows the first after a row of columns
  integer,    // an integer for each batch
  pairs,      // halves with adjacent numbers; the rest of the program is the same
  per_block,  // a number for each block of 16 columns; the next three roles: of 32, 64 and 128
};
constexpr int32_t kRoles = 13;
constexpr int32_t kLeastBlock = 16, kMostBlock = 128;

// A flag of an operation with a value from an earlier phase, which still exists if a row is one
// piece.
constexpr int32_t kAgain = 1 << 16;

struct Instruction {
  int32_t operation;
  int32_t to;
  int32_t a, b, c;
  int32_t extra;
};
constexpr int32_t kInstructionWords = sizeof(Instruction) / sizeof(int32_t);

// Limits on the requests of a malformed program, larger than any real program needs.
constexpr int32_t kMostRegisters = 1 << 12;
constexpr int32_t kMostPhases = 1 << 10;
constexpr int32_t kMostInstructions = 1 << 16;

// A validated program: pointers to the parts of its bytecode.
struct View {
  Header header;
  const int32_t* constants;
  const int32_t* integers;
  const int32_t* operand_roles;
  const int32_t* result_roles;
  const int32_t* sections;
  const Instruction* code;
  int32_t instructions;
  int32_t block;  // the most columns of a block, which divide a row; 0 without blocks

  // Returns halves for pairs, too: bridge_program_array::pairs tells them apart.
  __attribute__((always_inline)) Role operand_role(int32_t i) const {
    return operand_has_pairs(i) ? Role::halves : role_of(operand_roles[i]);
  }
  __attribute__((always_inline)) Role result_role(int32_t i) const {
    return result_has_pairs(i) ? Role::halves : role_of(result_roles[i]);
  }
  // The columns of a block of an operand or a result of role per_block; 0 for other roles.
  __attribute__((always_inline)) int32_t operand_block(int32_t i) const {
    return block_of(operand_roles[i]);
  }
  __attribute__((always_inline)) int32_t result_block(int32_t i) const {
    return block_of(result_roles[i]);
  }
  __attribute__((always_inline)) bool operand_has_pairs(int32_t i) const {
    return operand_roles[i] == static_cast<int32_t>(Role::pairs);
  }
  __attribute__((always_inline)) bool result_has_pairs(int32_t i) const {
    return result_roles[i] == static_cast<int32_t>(Role::pairs);
  }

 private:
  static __attribute__((always_inline)) Role role_of(int32_t role) {
    return block_of(role) > 0 ? Role::per_block : static_cast<Role>(role);
  }
  static __attribute__((always_inline)) int32_t block_of(int32_t role) {
    const int32_t first = static_cast<int32_t>(Role::per_block);
    return role < first ? 0 : kLeastBlock << (role - first);
  }
};

// Returns the largest random word for which kKeep drops an element: constant i, a threshold from 1
// to 2^32, minus 1.
__attribute__((always_inline)) inline uint32_t last_dropped(const int32_t* constants, int32_t i) {
  double threshold;
  memcpy(&threshold, constants + 2 * i, sizeof threshold);
  return static_cast<uint32_t>(static_cast<int64_t>(threshold) - 1);
}

// Finds the parts of a program and checks everything but its instructions: enough to describe its
// arrays.
bool outline(const int32_t* words, int64_t count, View* view, const char** why);

// Reads and checks words of any content: a program that passes reads and writes only its own
// registers, operands and results. On failure returns false and sets *why to a message.
bool read(const int32_t* words, int64_t count, View* view, const char** why);

}  // namespace bridge::interpreter

#endif  // BRIDGE_PROGRAM_PROGRAM_H_
