// The form of a program: 32-bit words, as bridge/lang/bytecode.py writes them.
//
//   header          the numbers of Header, in its order
//   constants       floating ones, two words each: a double, the low word first
//   integers        two words each: an int64
//   operand roles   one word each
//   result roles    one word each
//   sections        for each phase: how many instructions its row section has, and its tile
//   section;
//                   then the row section behind the last phase
//   instructions    kInstructionWords each, in this order
//
// A row section runs once for a few rows, on row registers, which hold a number for each of them; a
// tile section runs for each piece of these rows, on tile registers, which hold a number for each
// element. A reduction of a tile section is known behind it. Floating constant i is in tile
// register i and in row register i from the start, and so are integers. A truth value is the number
// 0 or 1.
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
  int32_t tiles;  // registers of floating numbers; of integers; the same for rows
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

// How an operand or a result lies; the order is that of ROLES in bridge/lang/bytecode.py.
enum class Role : int32_t {
  full,     // a number for each element
  row,      // a result: the sum over the rows of a batch
  per_row,  // a number for each row
  label,    // an integer for each row
  table,
  mask,
  halves,   // two numbers for each element: the second a row's length of columns behind the first
  integer,  // an integer for each batch
  pairs,    // halves whose two numbers are side by side: what else a program does is the same
};
constexpr int32_t kRoles = 9;

// What an instruction does; the order is that of OPERATIONS in bridge/lang/bytecode.py.
enum Operation : int32_t {
  // Of any section: to = f(a, b, c).
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
  kRoundFloat16,  // to the nearest number of that type
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
  kReciprocal16,  // 0 of 0
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
  kLogSumTerm16,  // of numbers of 16 bits, as are these
  kFma,
  kWhere,
  kLogSum,
  kLogSumRest,
  kLogSum16,
  kLogSumRest16,
  kExp2BelowFloat16,
  kExp2BelowBfloat16,
  kElementwise,  // how many there are
  // Of integers; those that compare give a truth value, and kFloat a floating number.
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
  // Of row sections.
  kLoadRow,        // to = per_row operand a
  kLoadLabel,      // to = label or integer operand a
  kColumns,        // to = how many columns there are
  kSpread,         // tile register to = row register a
  kIntegerSpread,  // the same of integers
  kStoreRow,       // per_row result a = row register b
  // Of tile sections.
  kLoad,        // to = operand a, its half b
  kLoadMask,    // to = mask a
  kColumn,      // to = the number of the column, an integer
  kKeep,        // to = whether the random word is at least floating constant `extra`, an integer
                // from 1 to 2^32; integer row registers: a is the seed, b the offset, c the number
                // of the batch's first element (-1: it is 0)
  kStore,       // full or halves result a = tile register b, its half c
  kAddColumns,  // row result a += tile register b
  // Reductions of tile register a into row register `to`; `extra` is the number of the reduction.
  kSum,
  kMax,
  kArgmax,  // into an integer row register
  kOperations,
};

__attribute__((always_inline)) constexpr bool is_reduction(int32_t operation) {
  return operation >= kSum && operation < kOperations;
}

// Set in an operation whose value is still there where a row is one piece: an earlier phase had it.
constexpr int32_t kAgain = 1 << 16;

struct Instruction {
  int32_t operation;
  int32_t to;
  int32_t a, b, c;
  int32_t extra;
};
constexpr int32_t kInstructionWords = sizeof(Instruction) / sizeof(int32_t);

// How many registers an elementwise operation reads. (Always inline, as all that the files of each
// instruction set use.)
__attribute__((always_inline)) constexpr int arity(int32_t operation) {
  return operation < kAdd ? 1 : operation < kFma ? 2 : 3;
}

// Whether it takes many times what an addition takes.
constexpr bool takes_long(int32_t operation) {
  return (operation >= kExp && operation <= kGeluSigmoid2) || operation == kExpCoarse ||
         operation == kExpLow || (operation >= kSigmoidFloat16 && operation < kAdd) ||
         (operation >= kExp2Lifted && operation <= kLogSumTerm16) ||
         (operation >= kLogSum && operation < kElementwise) || operation == kKeep;
}

// More than any program of use has; bounds what a malformed one can ask for.
constexpr int32_t kMostRegisters = 1 << 12;
constexpr int32_t kMostPhases = 1 << 10;
constexpr int32_t kMostInstructions = 1 << 16;

// A program that was checked: where its parts are among its words.
struct View {
  Header header;
  const int32_t* constants;
  const int32_t* integers;
  const int32_t* operand_roles;
  const int32_t* result_roles;
  const int32_t* sections;
  const Instruction* code;
  int32_t instructions;

  // Pairs are halves; their arrays say so.
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

// The largest random word for which kKeep drops an element: its threshold, among the constants of a
// program, less 1, which has 32 bits.
__attribute__((always_inline)) inline uint32_t last_dropped(const int32_t* constants, int32_t i) {
  double threshold;
  memcpy(&threshold, constants + 2 * i, sizeof threshold);
  return static_cast<uint32_t>(static_cast<int64_t>(threshold) - 1);
}

// Finds the parts of a program, and checks all but its instructions: enough to tell its arrays.
bool outline(const int32_t* words, int64_t count, View* view, const char** why);

// Reads and checks words of any content, so that a program which passes reads and writes nothing
// but its own registers, operands and results. On failure *why is a message, and false is returned.
bool read(const int32_t* words, int64_t count, View* view, const char** why);

}  // namespace bridge::interpreter

#endif  // BRIDGE_INTERPRETER_PROGRAM_H_
