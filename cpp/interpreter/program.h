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
#ifndef BRIDGE_INTERPRETER_PROGRAM_H_
#define BRIDGE_INTERPRETER_PROGRAM_H_

#include <bridge/bridge.h>
#include <stdint.h>
#include <string.h>

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
constexpr int32_t kVersion = 9;
constexpr int32_t kHeaderWords = sizeof(Header) / sizeof(int32_t);

// The shape of an operand or a result, in the order of ROLES in bridge/lang/bytecode.py.
enum class Role : int32_t {
  full,     // a number for each element
  row,      // a result: the sum over the rows of a batch
  per_row,  // a number for each row
  label,    // an integer for each row
  table,
  mask,
  halves,   // two numbers for each element: the second follows the first after a row of columns
  integer,  // an integer for each batch
  pairs,    // halves with adjacent numbers; the rest of the program is the same
};
constexpr int32_t kRoles = 9;

// The operation of an instruction, in the order of OPERATIONS in bridge/lang/bytecode.py.
enum Operation : int32_t {
  // Any section: to = f(a, b, c).
  kNegative,
  kAbsolute,
  kSquareRoot,
  kReciprocalRoot,
  kExp,
  kExp2,
  kExpm1,
  kLog,
  kLog1p,
  kTanh,
  kSigmoid,
  kSilu,
  kSoftplus,
  kErf,
  kGauss,
  kGaussHalved,
  kGeluTanh,
  kGeluTanh1,
  kGeluTanh2,
  kGeluErf,
  kGeluErf1,
  kGeluErf2,
  kGeluSigmoid,
  kGeluSigmoid1,
  kGeluSigmoid2,
  kNot,
  kExpCoarse,
  kExpLow,
  kRoundFloat16,  // to the nearest number of the type
  kRoundBfloat16,
  kRoundFloat32,
  kSigmoidFloat16,  // for results of 16 bits
  kSiluFloat16,
  kSiluSlopeFloat16,
  kGeluTanhFloat16,
  kGeluTanh1Float16,
  kGeluErfFloat16,
  kGeluErf1Float16,
  kGeluSigmoidFloat16,
  kGeluSigmoid1Float16,
  kSigmoidBfloat16,
  kSiluBfloat16,
  kSiluSlopeBfloat16,
  kGeluTanhBfloat16,
  kGeluTanh1Bfloat16,
  kGeluErfBfloat16,
  kGeluErf1Bfloat16,
  kGeluSigmoidBfloat16,
  kGeluSigmoid1Bfloat16,
  kReciprocal16,  // 0 if a is 0
  kExpLow16,
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kMinimum,
  kMaximum,
  kLess,
  kLessEqual,
  kEqual,
  kNotEqual,
  kAnd,
  kOr,
  kExp2Lifted,
  kLogSumTerm,
  kLogSumTerm16,  // for numbers of 16 bits, like the others with 16
  kFma,
  kWhere,
  kLogSum,
  kLogSumRest,
  kLogSum16,
  kLogSumRest16,
  kExp2BelowFloat16,
  kExp2BelowBfloat16,
  kElementwise,  // the number of elementwise operations
  // Integers. Comparisons give a truth value, and kFloat a floating number.
  kIntegerNegative = kElementwise,
  kIntegerAdd,
  kIntegerSubtract,
  kIntegerMultiply,
  kIntegerWhere,  // a is a truth value
  kIntegerLess,
  kIntegerLessEqual,
  kIntegerEqual,
  kIntegerNotEqual,
  kFloat,
  // Row sections.
  kLoadRow,        // to = per_row operand a
  kLoadLabel,      // to = label or integer operand a
  kColumns,        // to = the number of columns
  kSpread,         // tile register to = row register a
  kIntegerSpread,  // the same for integers
  kStoreRow,       // per_row result a = row register b
  // Tile sections.
  kLoad,      // to = operand a, its half b
  kLoadMask,  // to = mask a
  kColumn,    // to = the index of the column, an integer
  kKeep,   // to = the random word is at least floating constant `extra`, an integer from 1 to 2^32;
           // integer row registers: a is the seed, b the offset, c the index of the batch's first
           // element (-1: it is 0)
  kStore,  // full or halves result a = tile register b, its half c
  kAddColumns,  // row result a += tile register b
  // Reductions of tile register a into row register `to`; `extra` is the index of the reduction.
  kSum,
  kMax,
  kArgmax,  // into an integer row register
  kOperations,
};

__attribute__((always_inline)) constexpr bool is_reduction(int32_t operation) {
  return operation >= kSum && operation < kOperations;
}

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

// Returns how many registers an elementwise operation reads. Always inline, as is everything that
// files of several instruction sets use.
__attribute__((always_inline)) constexpr int arity(int32_t operation) {
  return operation < kAdd ? 1 : operation < kFma ? 2 : 3;
}

// Returns true if the operation takes many times as long as an addition.
constexpr bool takes_long(int32_t operation) {
  return (operation >= kExp && operation <= kGeluSigmoid2) || operation == kExpCoarse ||
         operation == kExpLow || (operation >= kSigmoidFloat16 && operation < kAdd) ||
         (operation >= kExp2Lifted && operation <= kLogSumTerm16) ||
         (operation >= kLogSum && operation < kElementwise) || operation == kKeep;
}

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

  // Returns halves for pairs, too: bridge_program_array::pairs tells them apart.
  __attribute__((always_inline)) Role operand_role(int32_t i) const {
    return operand_has_pairs(i) ? Role::halves : static_cast<Role>(operand_roles[i]);
  }
  __attribute__((always_inline)) Role result_role(int32_t i) const {
    return result_has_pairs(i) ? Role::halves : static_cast<Role>(result_roles[i]);
  }
  __attribute__((always_inline)) bool operand_has_pairs(int32_t i) const {
    return operand_roles[i] == static_cast<int32_t>(Role::pairs);
  }
  __attribute__((always_inline)) bool result_has_pairs(int32_t i) const {
    return result_roles[i] == static_cast<int32_t>(Role::pairs);
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

#endif  // BRIDGE_INTERPRETER_PROGRAM_H_
