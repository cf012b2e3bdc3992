// The instruction set, written by cmake/write_operations.py from bridge/lang/operations.py and
// bridge/lang/instructions.py.
#ifndef BRIDGE_INTERPRETER_OPERATIONS_H_
#define BRIDGE_INTERPRETER_OPERATIONS_H_

#include <stdint.h>

namespace bridge::interpreter {

// Versions of the bytecode that this library reads; it has the last one.
constexpr int32_t kOldestVersion = 11, kVersion = 15;

// The operation of an instruction.
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
  kRoundFloat16,
  kRoundBfloat16,
  kRoundFloat32,
  kSigmoidFloat16,
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
  kReciprocal16,
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
  kLogSumTerm16,
  kFma,
  kWhere,
  kLogSum,
  kLogSumRest,
  kLogSum16,
  kLogSumRest16,
  kExp2BelowFloat16,
  kExp2BelowBfloat16,
  kRoundInt8,
  kRoundFloat8E4m3fn,
  kRoundFloat8E5m2,
  kRoundFloat8E8m0fnu,
  kBinade,
  kSin,
  kCos,
  // The number of elementwise operations.
  kElementwise,
  // Integers. Comparisons give a truth value, and kFloat a floating number.
  kIntegerNegative = 256,
  kIntegerAdd,
  kIntegerSubtract,
  kIntegerMultiply,
  // a is a truth value
  kIntegerWhere,
  kIntegerLess,
  kIntegerLessEqual,
  kIntegerEqual,
  kIntegerNotEqual,
  kFloat,
  // Row sections.
  // to = per_row operand a
  kLoadRow,
  // to = label or integer operand a
  kLoadLabel,
  // to = the number of columns
  kColumns,
  // the same, an integer
  kIntegerColumns,
  // tile register to = row register a
  kSpread,
  // the same for integers
  kIntegerSpread,
  // per_row result a = row register b
  kStoreRow,
  // Tile sections.
  // to = operand a, its half b
  kLoad,
  // to = mask a
  kLoadMask,
  // to = the index of the column, an integer
  kColumn,
  // to = the random word is at least floating constant `extra`, an integer from 1 to 2^32; integer
  // row registers: a is the seed, b the offset, c the index of the batch's first element (-1: it is
  // 0)
  kKeep,
  // Tile sections, where an instruction has an effect.
  // full or halves result a = tile register b, its half c
  kStore,
  // row result a += tile register b
  kAddColumns,
  // Reductions of tile register a into row register `to`; `extra` is the index of the reduction.
  kSum,
  kMax,
  // into an integer row register
  kArgmax,
  // Tile sections. Reductions of tile register a in each block of `extra` columns, 16, 32, 64 or
  // 128; each column of the block gets the result.
  kBlockSum,
  kBlockMax,
  // into an integer tile register
  kBlockArgmax,
};

// Returns how many registers an elementwise operation reads. Always inline, as is everything that
// files of several instruction sets use.
__attribute__((always_inline)) constexpr int arity(int32_t operation) {
  switch (operation) {
    case kAdd:
    case kSubtract:
    case kMultiply:
    case kDivide:
    case kMinimum:
    case kMaximum:
    case kLess:
    case kLessEqual:
    case kEqual:
    case kNotEqual:
    case kAnd:
    case kOr:
    case kExp2Lifted:
    case kLogSumTerm:
    case kLogSumTerm16:
      return 2;
    case kFma:
    case kWhere:
    case kLogSum:
    case kLogSumRest:
    case kLogSum16:
    case kLogSumRest16:
    case kExp2BelowFloat16:
    case kExp2BelowBfloat16:
      return 3;
    default:
      return 1;
  }
}

// Returns true if the operation takes many times as long as an addition.
constexpr bool takes_long(int32_t operation) {
  switch (operation) {
    case kExp:
    case kExp2:
    case kExpm1:
    case kLog:
    case kLog1p:
    case kTanh:
    case kSigmoid:
    case kSilu:
    case kSoftplus:
    case kErf:
    case kGauss:
    case kGaussHalved:
    case kGeluTanh:
    case kGeluTanh1:
    case kGeluTanh2:
    case kGeluErf:
    case kGeluErf1:
    case kGeluErf2:
    case kGeluSigmoid:
    case kGeluSigmoid1:
    case kGeluSigmoid2:
    case kExpCoarse:
    case kExpLow:
    case kSigmoidFloat16:
    case kSiluFloat16:
    case kSiluSlopeFloat16:
    case kGeluTanhFloat16:
    case kGeluTanh1Float16:
    case kGeluErfFloat16:
    case kGeluErf1Float16:
    case kGeluSigmoidFloat16:
    case kGeluSigmoid1Float16:
    case kSigmoidBfloat16:
    case kSiluBfloat16:
    case kSiluSlopeBfloat16:
    case kGeluTanhBfloat16:
    case kGeluTanh1Bfloat16:
    case kGeluErfBfloat16:
    case kGeluErf1Bfloat16:
    case kGeluSigmoidBfloat16:
    case kGeluSigmoid1Bfloat16:
    case kReciprocal16:
    case kExpLow16:
    case kExp2Lifted:
    case kLogSumTerm:
    case kLogSumTerm16:
    case kLogSum:
    case kLogSumRest:
    case kLogSum16:
    case kLogSumRest16:
    case kExp2BelowFloat16:
    case kExp2BelowBfloat16:
    case kSin:
    case kCos:
    case kKeep:
      return true;
    default:
      return false;
  }
}

__attribute__((always_inline)) constexpr bool is_reduction(int32_t operation) {
  switch (operation) {
    case kSum:
    case kMax:
    case kArgmax:
      return true;
    default:
      return false;
  }
}

__attribute__((always_inline)) constexpr bool is_block_reduction(int32_t operation) {
  switch (operation) {
    case kBlockSum:
    case kBlockMax:
    case kBlockArgmax:
      return true;
    default:
      return false;
  }
}

// Returns true for a store, a column sum or a reduction: no section repeats it.
__attribute__((always_inline)) constexpr bool has_effect(int32_t operation) {
  switch (operation) {
    case kStore:
    case kAddColumns:
    case kSum:
    case kMax:
    case kArgmax:
      return true;
    default:
      return false;
  }
}

}  // namespace bridge::interpreter

#endif  // BRIDGE_INTERPRETER_OPERATIONS_H_
