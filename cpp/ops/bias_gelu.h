// What the CPU and the CUDA kernel of bias_gelu share: the shape of the column-sum tree, the
// arithmetic of a call, and the checks of its arguments. Host code and constants only.
#ifndef BRIDGE_OPS_BIAS_GELU_H_
#define BRIDGE_OPS_BIAS_GELU_H_

#include <bridge/bridge.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

namespace bridge {

// The column-sum tree; the bits of every bias gradient depend on these numbers (docs/numerics.md).
// A chunk is kChunkRows consecutive rows of one batch: kLanes lanes of kLaneRows rows each. A lane
// starts at -0.0, the exact identity of IEEE addition, and adds its rows in order; the lanes are
// added as ((l0+l1)+(l2+l3))+((l4+l5)+(l6+l7)); the chunks by the aligned binary tree, in which a
// node without a right child is its left child. No rows at all give +0.
constexpr int64_t kChunkRows = 128;
constexpr int64_t kLaneRows = 16;
constexpr int64_t kLanes = kChunkRows / kLaneRows;

constexpr int64_t chunk_count(int64_t rows) { return (rows + kChunkRows - 1) / kChunkRows; }

// half: float32 with polynomials good to 16 bits; single: float32; double_: float64.
enum class Arithmetic : int32_t { half = 0, single = 1, double_ = 2 };

constexpr bool is_present(const bridge_array& array) { return array.data != nullptr; }
// Always inline: the kernels of each instruction set use these, and must leave no copy behind that
// other code could be linked to.
__attribute__((always_inline)) constexpr bool is_16_bit(int32_t dtype) {
  return dtype == BRIDGE_FLOAT16 || dtype == BRIDGE_BFLOAT16;
}
__attribute__((always_inline)) constexpr int64_t dtype_bytes(int32_t dtype) {
  return is_16_bit(dtype) ? 2 : dtype == BRIDGE_FLOAT32 ? 4 : 8;
}

// Calls visit(array, index) for every present operand of the call; index 0 is input.full, 1
// input.row, 2 + 2i and 3 + 2i the full and row of factor i.
template <class Visit>
void for_each_input(const bridge_bias_gelu& call, Visit&& visit) {
  if (is_present(call.input.full)) visit(call.input.full, 0);
  if (is_present(call.input.row)) visit(call.input.row, 1);
  for (int i = 0; i < call.factors; ++i) {
    if (is_present(call.factor[i].full)) visit(call.factor[i].full, 2 + 2 * i);
    if (is_present(call.factor[i].row)) visit(call.factor[i].row, 3 + 2 * i);
  }
}

// The arithmetic of a valid call: float64 if any operand is, 16-bit accuracy if all are 16-bit.
inline Arithmetic arithmetic_of(const bridge_bias_gelu& call) {
  bool any_double = false, all_16_bit = true;
  auto see = [&](const bridge_array& array, int) {
    any_double |= array.dtype == BRIDGE_FLOAT64;
    all_16_bit &= is_16_bit(array.dtype);
  };
  for_each_input(call, see);
  if (is_present(call.output.full)) see(call.output.full, 0);
  if (is_present(call.output.row)) see(call.output.row, 0);
  return any_double ? Arithmetic::double_ : all_16_bit ? Arithmetic::half : Arithmetic::single;
}

namespace check {

// Writes the message of a refused call.
struct Refusal {
  char* message;
  size_t bytes;

  __attribute__((format(printf, 2, 3))) bridge_status operator()(const char* format, ...) const {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, bytes, format, arguments);
    va_end(arguments);
    return BRIDGE_INVALID_ARGUMENT;
  }
};

// One operand under check: a member of a pair of the call. index is -1 where there is one such
// pair.
struct Operand {
  const bridge_array* array;
  const char* pair;
  bool row;
  int index = -1;
};

// An operand's name in messages ("factor[2].row"), written when there is a message to write: printf
// for every operand of every call would cost more than the rest of a tiny call.
struct Name {
  char text[24];

  explicit Name(const Operand& operand) {
    const char* member = operand.row ? "row" : "full";
    if (operand.index < 0)
      snprintf(text, sizeof text, "%s.%s", operand.pair, member);
    else
      snprintf(text, sizeof text, "%s[%d].%s", operand.pair, operand.index, member);
  }
};

constexpr int64_t magnitude(int64_t stride) { return stride < 0 ? -stride : stride; }

// Strides that matter: a dimension of one element has none.
inline int64_t row_step(const bridge_bias_gelu& call, const Operand& operand) {
  return operand.row || call.rows <= 1 ? 0 : operand.array->row_stride;
}
inline int64_t batch_step(const bridge_bias_gelu& call, const Operand& operand) {
  return call.batch <= 1 ? 0 : operand.array->batch_stride;
}

// The bytes [begin, end) between which the operand lies; false if they do not fit in 63 bits.
inline bool byte_range(const bridge_bias_gelu& call, const Operand& operand, int64_t* begin,
                       int64_t* end) {
  int64_t rows = 0, batches = 0, low = 0, high = 0;
  const int64_t row = row_step(call, operand), batch = batch_step(call, operand);
  const int64_t bytes = dtype_bytes(operand.array->dtype);
  if (__builtin_mul_overflow(row, call.rows - 1, &rows)) return false;
  if (__builtin_mul_overflow(batch, call.batch - 1, &batches)) return false;
  if (__builtin_add_overflow(rows < 0 ? rows : 0, batches < 0 ? batches : 0, &low)) return false;
  if (__builtin_add_overflow(rows > 0 ? rows : 0, batches > 0 ? batches : 0, &high)) return false;
  if (__builtin_add_overflow(high, call.cols, &high)) return false;
  const int64_t base = static_cast<int64_t>(reinterpret_cast<uintptr_t>(operand.array->data));
  return !__builtin_mul_overflow(low, bytes, &low) && !__builtin_mul_overflow(high, bytes, &high) &&
         !__builtin_add_overflow(low, base, begin) && !__builtin_add_overflow(high, base, end);
}

// Whether the rows of an output are apart from one another: the smaller step is at least a row,
// the larger at least everything that the smaller spans.
inline bool rows_are_apart(const bridge_bias_gelu& call, const Operand& operand) {
  int64_t small = magnitude(row_step(call, operand)), large = magnitude(batch_step(call, operand));
  int64_t small_count = operand.row ? 1 : call.rows, large_count = call.batch;
  if (small_count > 1 && large_count > 1 && small > large) {
    const int64_t step = small, count = small_count;
    small = large, small_count = large_count, large = step, large_count = count;
  }
  if (small_count > 1 && small < call.cols) return false;
  if (large_count <= 1) return true;
  return large >= (small_count > 1 ? small * (small_count - 1) : 0) + call.cols;
}

inline bool is_dense(const bridge_bias_gelu& call, const Operand& operand) {
  if (operand.row) return call.batch <= 1 || operand.array->batch_stride == call.cols;
  return (call.rows <= 1 || operand.array->row_stride == call.cols) &&
         (call.batch <= 1 || operand.array->batch_stride == call.rows * call.cols);
}

inline bool is_same_layout(const bridge_bias_gelu& call, const Operand& a, const Operand& b) {
  return a.array->data == b.array->data && a.array->dtype == b.array->dtype && a.row == b.row &&
         row_step(call, a) == row_step(call, b) && batch_step(call, a) == batch_step(call, b);
}

}  // namespace check

// BRIDGE_OK, or BRIDGE_INVALID_ARGUMENT with a message that names the field, what it holds and what
// is expected. Refuses whatever could make a kernel read or write where it should not; an overlap
// of an output with another operand is found where both are dense, and else the caller's duty.
inline bridge_status validate(const bridge_bias_gelu& call, char* message, size_t message_bytes) {
  using check::Operand;
  const check::Refusal fail{message, message_bytes};
  if (call.form < BRIDGE_GELU_TANH || call.form > BRIDGE_GELU_SIGMOID)
    return fail("bias_gelu: form is %d, expected 0 (tanh), 1 (erf) or 2 (sigmoid)",
                static_cast<int>(call.form));
  if (call.order < 0 || call.order > BRIDGE_MAX_GELU_ORDER)
    return fail("bias_gelu: order is %d, expected 0 to %d", static_cast<int>(call.order),
                static_cast<int>(BRIDGE_MAX_GELU_ORDER));
  if (call.factors < 0 || call.factors > BRIDGE_MAX_FACTORS)
    return fail("bias_gelu: factors is %d, expected 0 to %d", static_cast<int>(call.factors),
                static_cast<int>(BRIDGE_MAX_FACTORS));
  if (call.batch < 0 || call.rows < 0 || call.cols < 0)
    return fail("bias_gelu: sizes are [%lld, %lld, %lld], expected none below 0",
                static_cast<long long>(call.batch), static_cast<long long>(call.rows),
                static_cast<long long>(call.cols));
  int64_t elements = 0;
  if (__builtin_mul_overflow(call.rows, call.cols, &elements) ||
      __builtin_mul_overflow(elements, call.batch, &elements))
    return fail("bias_gelu: sizes are [%lld, %lld, %lld], more elements than 63 bits count",
                static_cast<long long>(call.batch), static_cast<long long>(call.rows),
                static_cast<long long>(call.cols));

  Operand operands[2 * BRIDGE_MAX_FACTORS + 4];
  int count = 0;
  auto add = [&](const bridge_pair& pair, const char* name, int index) {
    if (is_present(pair.full)) operands[count++] = {&pair.full, name, false, index};
    if (is_present(pair.row)) operands[count++] = {&pair.row, name, true, index};
  };
  add(call.input, "input", -1);
  for (int i = 0; i < call.factors; ++i) add(call.factor[i], "factor", i);
  const int inputs = count;
  add(call.output, "output", -1);

  // An array of no elements may carry any pointer, a null one too.
  if (elements != 0) {
    if (!is_present(call.input.full)) return fail("bias_gelu: input.full is absent, but required");
    for (int i = 0; i < call.factors; ++i)
      if (!is_present(call.factor[i].full) && !is_present(call.factor[i].row))
        return fail("bias_gelu: factor[%d] has neither full nor row", i);
    if (inputs == count) return fail("bias_gelu: both outputs are absent, expected at least one");
  }

  int64_t begin[2 * BRIDGE_MAX_FACTORS + 4], end[2 * BRIDGE_MAX_FACTORS + 4];
  for (int i = 0; i < count; ++i) {
    const Operand& operand = operands[i];
    const bridge_array& array = *operand.array;
    begin[i] = end[i] = 0;
    if (array.dtype < BRIDGE_FLOAT16 || array.dtype > BRIDGE_FLOAT64)
      return fail(
          "bias_gelu: %s has dtype %d, expected 0 to 3 (float16, bfloat16, float32, "
          "float64)",
          check::Name(operand).text, static_cast<int>(array.dtype));
    // With no columns or batches nothing is read or written; with no rows only output.row is.
    if (call.batch == 0 || call.cols == 0) continue;
    const bool output = i >= inputs;
    if (call.rows == 0 && !(output && operand.row)) continue;
    if (reinterpret_cast<uintptr_t>(array.data) &
        static_cast<uintptr_t>(dtype_bytes(array.dtype) - 1))
      return fail("bias_gelu: %s is at %p, expected a multiple of %d bytes",
                  check::Name(operand).text, array.data,
                  static_cast<int>(dtype_bytes(array.dtype)));
    if (operand.row && array.row_stride != 0)
      return fail("bias_gelu: %s has row_stride %lld, expected 0: it is one vector for all rows",
                  check::Name(operand).text, static_cast<long long>(array.row_stride));
    if (array.row_stride == INT64_MIN || array.batch_stride == INT64_MIN ||
        !check::byte_range(call, operand, &begin[i], &end[i]))
      return fail("bias_gelu: %s has strides [%lld, %lld], which reach beyond 63 bits of address",
                  check::Name(operand).text, static_cast<long long>(array.batch_stride),
                  static_cast<long long>(array.row_stride));
    if (!output) continue;
    if (!check::rows_are_apart(call, operand))
      return fail("bias_gelu: %s has strides [%lld, %lld], with which its rows overlap",
                  check::Name(operand).text, static_cast<long long>(array.batch_stride),
                  static_cast<long long>(array.row_stride));
    for (int j = 0; j < i; ++j) {
      if (end[j] <= begin[i] || end[i] <= begin[j]) continue;
      if (!operand.row && check::is_same_layout(call, operand, operands[j])) continue;
      if (check::is_dense(call, operand) && check::is_dense(call, operands[j]))
        return fail("bias_gelu: %s overlaps %s", check::Name(operand).text,
                    check::Name(operands[j]).text);
    }
  }
  return BRIDGE_OK;
}

}  // namespace bridge

#endif  // BRIDGE_OPS_BIAS_GELU_H_
