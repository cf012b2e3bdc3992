// Instructions for any section, as loops over registers. Include it only in files compiled once for
// each instruction set.
#ifndef BRIDGE_INTERPRETER_REGISTER_LOOPS_H_
#define BRIDGE_INTERPRETER_REGISTER_LOOPS_H_

#include "cpu/tile.h"
#include "program/elementwise.h"
#include "program/program.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

using namespace interpreter;  // NOLINT: one name for the parts of a program

template <class Real>
using Elementwise = void (*)(Real* to, const Real* a, const Real* b, const Real* c, int64_t count);

template <int32_t kOperation, class Real>
void elementwise(Real* to, const Real* a, const Real* b, const Real* c, int64_t count) {
  if (count % kStep != 0) __builtin_unreachable();
  constexpr int inputs = arity(kOperation);
  BRIDGE_INDEPENDENT
  for (int64_t i = 0; i < count; ++i) {
    to[i] = compute<kOperation>(a[i], inputs > 1 ? b[i] : Real(0), inputs > 2 ? c[i] : Real(0));
  }
}

template <class Real>
struct ElementwiseTable {
  Elementwise<Real> of[kElementwise];
};

template <class Real, int32_t kNext = 0>
constexpr void fill_table(ElementwiseTable<Real>& table) {
  if constexpr (kNext < kElementwise) {
    table.of[kNext] = elementwise<kNext, Real>;
    fill_table<Real, kNext + 1>(table);
  }
}

template <class Real>
constexpr ElementwiseTable<Real> make_table() {
  ElementwiseTable<Real> table{};
  fill_table(table);
  return table;
}

template <class Real>
constexpr ElementwiseTable<Real> kTable = make_table<Real>();

// Computes in unsigned integers, so that an overflow wraps around.
template <class Function>
inline void combine(int64_t* to, const int64_t* a, const int64_t* b, int64_t count,
                    const Function& function) {
  for (int64_t i = 0; i < count; ++i)
    to[i] =
        static_cast<int64_t>(function(static_cast<uint64_t>(a[i]), static_cast<uint64_t>(b[i])));
}

template <class Real, class Function>
inline void compare(Real* to, const int64_t* a, const int64_t* b, int64_t count,
                    const Function& function) {
  for (int64_t i = 0; i < count; ++i) to[i] = truth<Real>(function(a[i], b[i]));
}

// Runs an instruction on the first `count` numbers of each register, a multiple of kStep. Registers
// are kWidth numbers apart.
template <int64_t kWidth, class Real>
void run_on_registers(const Instruction& in, int32_t operation, Real* reals, int64_t* integers,
                      int64_t count) {
  const auto real = [=](int32_t i) { return reals + i * kWidth; };
  const auto integer = [=](int32_t i) { return integers + i * kWidth; };
  if (operation < kElementwise) {
    const int inputs = arity(operation);
    const Real* a = real(in.a);
    return kTable<Real>.of[operation](real(in.to), a, inputs > 1 ? real(in.b) : a,
                                      inputs > 2 ? real(in.c) : a, count);
  }
  switch (operation) {
    case kIntegerNegative:
      return combine(integer(in.to), integer(in.a), integer(in.a), count,
                     [](uint64_t a, uint64_t) { return 0 - a; });
    case kIntegerAdd:
      return combine(integer(in.to), integer(in.a), integer(in.b), count,
                     [](uint64_t a, uint64_t b) { return a + b; });
    case kIntegerSubtract:
      return combine(integer(in.to), integer(in.a), integer(in.b), count,
                     [](uint64_t a, uint64_t b) { return a - b; });
    case kIntegerMultiply:
      return combine(integer(in.to), integer(in.a), integer(in.b), count,
                     [](uint64_t a, uint64_t b) { return a * b; });
    case kIntegerWhere: {
      const Real* condition = real(in.a);
      const int64_t *x = integer(in.b), *y = integer(in.c);
      int64_t* to = integer(in.to);
      for (int64_t i = 0; i < count; ++i) to[i] = condition[i] != 0 ? x[i] : y[i];
      return;
    }
    case kIntegerLess:
      return compare(real(in.to), integer(in.a), integer(in.b), count,
                     [](int64_t a, int64_t b) { return a < b; });
    case kIntegerLessEqual:
      return compare(real(in.to), integer(in.a), integer(in.b), count,
                     [](int64_t a, int64_t b) { return a <= b; });
    case kIntegerEqual:
      return compare(real(in.to), integer(in.a), integer(in.b), count,
                     [](int64_t a, int64_t b) { return a == b; });
    case kIntegerNotEqual:
      return compare(real(in.to), integer(in.a), integer(in.b), count,
                     [](int64_t a, int64_t b) { return a != b; });
    default: {  // kFloat
      Real* to = real(in.to);
      const int64_t* from = integer(in.a);
      for (int64_t i = 0; i < count; ++i) to[i] = static_cast<Real>(from[i]);
    }
  }
}

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_INTERPRETER_REGISTER_LOOPS_H_
