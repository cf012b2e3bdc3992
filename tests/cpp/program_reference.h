// The definition of a program, one row and one element at a time. A register holds a whole row,
// sums have the form of docs/numerics.md, and values of an earlier phase are computed again.
#ifndef BRIDGE_TESTS_PROGRAM_REFERENCE_H_
#define BRIDGE_TESTS_PROGRAM_REFERENCE_H_

#include <bridge/bridge.h>

#include <cstdlib>
#include <utility>
#include <vector>

#include "array_reference.h"
#include "drivers/integers.h"
#include "math/philox.h"
#include "program/elementwise.h"
#include "program/interpreter.h"
#include "row_sum_reference.h"

namespace bridge::reference {

using namespace interpreter;  // NOLINT: the words of a program

template <class Real>
using Elementwise = Real (*)(Real, Real, Real);

template <class Real, int32_t... kOperations>
Elementwise<Real> function_of(int32_t operation, std::integer_sequence<int32_t, kOperations...>) {
  static constexpr Elementwise<Real> kFunctions[] = {compute<kOperations, Real>...};
  return kFunctions[operation];
}

template <class Real>
Real evaluate(int32_t operation, Real a, Real b, Real c) {
  return function_of<Real>(operation, std::make_integer_sequence<int32_t, kElementwise>())(a, b, c);
}

template <class Real>
class ProgramReference {
 public:
  ProgramReference(const View& view, const bridge_program& call) : view_(view), call_(call) {}

  void run() {
    const Counts counts = counts_of(call_);
    for (int64_t batch = 0; batch < counts.batches; ++batch) {
      batch_ = batch;
      sums_.assign(static_cast<size_t>(view_.header.results * call_.cols), {});
      for (row_ = 0; row_ < counts.rows; ++row_) run_row();
      row_ = 0;
      for (int32_t i = 0; i < view_.header.results; ++i) {
        if (view_.result_role(i) != Role::row) continue;
        for (int64_t col = 0; col < call_.cols; ++col) {
          const auto at = static_cast<size_t>(i * call_.cols + col);
          store(call_.result[i], col, 0, column_sum(sums_[at]));
        }
      }
    }
  }

 private:
  // Registers: one number each in a row section, a whole row each in a tile section.
  template <class T>
  using Registers = std::vector<std::vector<T>>;

  // Returns the index of an element in the current row, or in the batch if the array has no row
  // strides.
  int64_t index_of(const bridge_program_array& array, int64_t col, int64_t half) const {
    int64_t index = (half * call_.cols + col) * array.col_stride, row = row_, batch = batch_;
    if (array.pairs == 1) index = (2 * col + half) * (array.col_stride / 2);
    if (array.pairs > 1) index = col / array.pairs * array.col_stride;
    for (int32_t d = call_.dims - 1; d >= call_.batch_dims; --d) {
      if (call_.size[d] == 0) continue;
      index += row % call_.size[d] * array.stride[d];
      row /= call_.size[d];
    }
    for (int32_t d = call_.batch_dims - 1; d >= 0; --d) {
      index += batch % call_.size[d] * array.stride[d];
      batch /= call_.size[d];
    }
    return index;
  }
  Real load(const bridge_program_array& array, int64_t col, int64_t half = 0) const {
    return reference::load<Real>(array.data, array.dtype, index_of(array, col, half));
  }
  int64_t load_integer(const bridge_program_array& array, int64_t col) const {
    const int64_t bytes = element_bytes(array.dtype);
    const char* from = static_cast<const char*>(array.data) + index_of(array, col, 0) * bytes;
    if (array.dtype == BRIDGE_INT8) return static_cast<int8_t>(*from);
    if (array.dtype == BRIDGE_INT16) return get<int16_t>(from);
    if (array.dtype == BRIDGE_INT32) return get<int32_t>(from);
    uint64_t value = 0;
    memcpy(&value, from, static_cast<size_t>(bytes));
    if (array.dtype == BRIDGE_UINT64 && value > INT64_MAX) return INT64_MAX;
    return static_cast<int64_t>(value);
  }
  template <class T>
  static T get(const char* from) {
    T value;
    memcpy(&value, from, sizeof value);
    return value;
  }
  void store(const bridge_program_array& array, int64_t col, int64_t half, Real value) const {
    reference::store(array.data, array.dtype, index_of(array, col, half), value);
  }

  void run_row() {
    const Header& header = view_.header;
    const auto size = [](int32_t count) { return static_cast<size_t>(count); };
    const std::vector<Real> nothing(size(static_cast<int32_t>(call_.cols)));
    tiles_.assign(size(header.tiles), nothing);
    rows_.assign(size(header.rows), std::vector<Real>(1));
    integer_tiles_.assign(size(header.integer_tiles), std::vector<int64_t>(nothing.size()));
    integer_rows_.assign(size(header.integer_rows), std::vector<int64_t>(1));
    for (int32_t i = 0; i < header.constants; ++i) {
      const double value = get<double>(reinterpret_cast<const char*>(view_.constants + 2 * i));
      tiles_[size(i)].assign(nothing.size(), static_cast<Real>(value));
      rows_[size(i)] = {static_cast<Real>(value)};
    }
    for (int32_t i = 0; i < header.integers; ++i) {
      const auto value = get<int64_t>(reinterpret_cast<const char*>(view_.integers + 2 * i));
      integer_tiles_[size(i)].assign(nothing.size(), value);
      integer_rows_[size(i)] = {value};
    }
    const Instruction* next = view_.code;
    for (int32_t section = 0; section <= 2 * header.phases; ++section) {
      for (int32_t i = 0; i < view_.sections[section]; ++i, ++next) {
        if (section % 2 == 0)
          run_on_row(*next);
        else
          run_on_tile(*next, next->operation & ~kAgain);
      }
    }
  }

  static uint64_t bits(int64_t value) { return static_cast<uint64_t>(value); }

  static void run_common(const Instruction& in, int32_t operation, Registers<Real>& reals,
                         Registers<int64_t>& integers, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      const auto real = [&](int32_t at) -> Real& { return reals[static_cast<size_t>(at)][i]; };
      const auto integer = [&](int32_t at) -> int64_t& {
        return integers[static_cast<size_t>(at)][i];
      };
      if (operation < kElementwise) {
        const int inputs = arity(operation);
        real(in.to) = evaluate(operation, real(in.a), inputs > 1 ? real(in.b) : Real(0),
                               inputs > 2 ? real(in.c) : Real(0));
      } else if (operation == kIntegerNegative) {
        integer(in.to) = static_cast<int64_t>(0 - bits(integer(in.a)));
      } else if (operation == kIntegerAdd) {
        integer(in.to) = static_cast<int64_t>(bits(integer(in.a)) + bits(integer(in.b)));
      } else if (operation == kIntegerSubtract) {
        integer(in.to) = static_cast<int64_t>(bits(integer(in.a)) - bits(integer(in.b)));
      } else if (operation == kIntegerMultiply) {
        integer(in.to) = static_cast<int64_t>(bits(integer(in.a)) * bits(integer(in.b)));
      } else if (operation == kIntegerWhere) {
        integer(in.to) = real(in.a) != 0 ? integer(in.b) : integer(in.c);
      } else if (operation == kIntegerLess) {
        real(in.to) = integer(in.a) < integer(in.b) ? 1 : 0;
      } else if (operation == kIntegerLessEqual) {
        real(in.to) = integer(in.a) <= integer(in.b) ? 1 : 0;
      } else if (operation == kIntegerEqual) {
        real(in.to) = integer(in.a) == integer(in.b) ? 1 : 0;
      } else if (operation == kIntegerNotEqual) {
        real(in.to) = integer(in.a) != integer(in.b) ? 1 : 0;
      } else if (operation == kFloat) {
        real(in.to) = static_cast<Real>(integer(in.a));
      } else {
        std::abort();  // an operation that the reference does not know
      }
    }
  }

  void run_on_row(const Instruction& in) {
    const auto to = static_cast<size_t>(in.to), a = static_cast<size_t>(in.a);
    switch (in.operation) {
      case kLoadRow:
        rows_[to] = {load(call_.operand[in.a], 0)};
        break;
      case kLoadLabel:
        integer_rows_[to] = {load_integer(call_.operand[in.a], 0)};
        break;
      case kColumns:
        rows_[to] = {static_cast<Real>(call_.cols)};
        break;
      case kIntegerColumns:
        integer_rows_[to] = {call_.cols};
        break;
      case kSpread:
        tiles_[to].assign(tiles_[to].size(), rows_[a][0]);
        break;
      case kIntegerSpread:
        integer_tiles_[to].assign(integer_tiles_[to].size(), integer_rows_[a][0]);
        break;
      case kStoreRow:
        store(call_.result[in.a], 0, 0, rows_[static_cast<size_t>(in.b)][0]);
        break;
      default:
        run_common(in, in.operation, rows_, integer_rows_, 1);
    }
  }

  void run_on_tile(const Instruction& in, int32_t operation) {
    const auto to = static_cast<size_t>(in.to), a = static_cast<size_t>(in.a);
    const auto b = static_cast<size_t>(in.b);
    for (int64_t col = 0; col < call_.cols; ++col) {
      const auto i = static_cast<size_t>(col);
      if (operation == kLoad)
        tiles_[to][i] = load(call_.operand[in.a], col, in.b);
      else if (operation == kLoadMask)
        tiles_[to][i] = load_integer(call_.operand[in.a], col) != 0 ? 1 : 0;
      else if (operation == kColumn)
        integer_tiles_[to][i] = col;
      else if (operation == kKeep)
        tiles_[to][i] = word(in, col) >= threshold(in) ? 1 : 0;
      else if (operation == kStore)
        store(call_.result[in.a], col, in.c, tiles_[b][i]);
      else if (operation == kAddColumns)
        sums_[a * tiles_[b].size() + i].push_back(tiles_[b][i]);
    }
    if (operation == kSum)
      rows_[to] = {row_sum(tiles_[a])};
    else if (operation == kMax)
      rows_[to] = {largest(tiles_[a])};
    else if (operation == kArgmax)
      integer_rows_[to] = {place_of_largest(tiles_[a])};
    else if (is_block_reduction(operation))
      run_on_blocks(in, operation);
    else if (operation < kLoadRow)
      run_common(in, operation, tiles_, integer_tiles_, static_cast<size_t>(call_.cols));
  }

  // A block is reduced as a row of its columns.
  void run_on_blocks(const Instruction& in, int32_t operation) {
    const std::vector<Real> x = tiles_[static_cast<size_t>(in.a)];
    for (int64_t col = 0; col < call_.cols; ++col) {
      const int64_t first = col / in.extra * in.extra;
      const std::vector<Real> block(x.begin() + first, x.begin() + first + in.extra);
      const auto to = static_cast<size_t>(in.to), i = static_cast<size_t>(col);
      if (operation == kBlockArgmax)
        integer_tiles_[to][i] = first + place_of_largest(block);
      else
        tiles_[to][i] = operation == kBlockSum ? row_sum(block) : largest(block);
    }
  }

  double threshold(const Instruction& in) const {
    return get<double>(reinterpret_cast<const char*>(view_.constants + 2 * in.extra));
  }

  uint32_t word(const Instruction& in, int64_t col) const {
    const auto integer = [this](int32_t i) {
      return bits(integer_rows_[static_cast<size_t>(i)][0]);
    };
    const uint64_t index =
        (in.c < 0 ? 0 : integer(in.c)) + bits(row_) * bits(call_.index_cols) + bits(col);
    return math::philox(integer(in.a), integer(in.b), index / 4).words[index % 4];
  }

  // NaN if there is one; +0 counts as larger than -0.
  static Real largest(const std::vector<Real>& x) {
    Real found = -__builtin_inf();
    for (const Real value : x) {
      if (value != value) return value;
      if (value > found || (value == 0 && found == 0 && !math::is_negative(value))) found = value;
    }
    return found;
  }
  static int64_t place_of_largest(const std::vector<Real>& x) {
    const Real value = largest(x);
    for (size_t i = 0; i < x.size(); ++i) {
      if (x[i] == value || (value != value && x[i] != x[i])) return static_cast<int64_t>(i);
    }
    return 0;
  }

  const View& view_;
  const bridge_program& call_;
  int64_t batch_ = 0, row_ = 0;
  Registers<Real> tiles_, rows_;
  Registers<int64_t> integer_tiles_, integer_rows_;
  std::vector<std::vector<Real>> sums_;
};

// Runs a valid call.
inline void run(const View& view, const bridge_program& call) {
  if (is_double(call))
    ProgramReference<double>(view, call).run();
  else
    ProgramReference<float>(view, call).run();
}

}  // namespace bridge::reference

#endif  // BRIDGE_TESTS_PROGRAM_REFERENCE_H_
