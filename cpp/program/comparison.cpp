#include "program/comparison.h"

#include <string.h>

#include "drivers/integers.h"
#include "math/convert.h"
#include "math/eight_bits.h"
#include "program/interpreter.h"

namespace bridge::interpreter {
namespace {

class Random {
 public:
  uint64_t bits() {  // splitmix64
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  int64_t below(int64_t end) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(end)); }

  // Returns a random number. Most are of ordinary size; the others are zeros, infinities, NaN, very
  // large or very small.
  double number() {
    static const double rare[] = {
        0.0, -0.0, __builtin_inf(), -__builtin_inf(), __builtin_nan(""), 1e30, -1e-30, 1.0};
    const int64_t kind = below(64);
    if (kind < 8 && are_rare_) return rare[kind];
    const double uniform = static_cast<double>(below(1 << 24)) / (1 << 23) - 1;
    return kind < 32 ? uniform : 4 * uniform;
  }
  void rare(bool wanted) { are_rare_ = wanted; }

 private:
  uint64_t state_ = 1;
  bool are_rare_ = true;
};

template <class T>
void put(char* to, T value) {
  memcpy(to, &value, sizeof value);
}

void put_number(char* to, int32_t dtype, double value) {
  switch (dtype) {
    case BRIDGE_FLOAT16:
      return put(to, math::round_to<math::float16>(value));
    case BRIDGE_BFLOAT16:
      return put(to, math::round_to<math::bfloat16>(value));
    case BRIDGE_FLOAT32:
      return put(to, math::round_to<float>(value));
    case BRIDGE_INT8:
      return put(to, math::round_to<int8_t>(value));
    case BRIDGE_FLOAT8_E4M3FN:
      return put(to, math::round_to<math::float8_e4m3fn>(value));
    case BRIDGE_FLOAT8_E5M2:
      return put(to, math::round_to<math::float8_e5m2>(value));
    case BRIDGE_FLOAT8_E8M0FNU:
      return put(to, math::round_to<math::float8_e8m0fnu>(value));
    default:
      return put(to, value);
  }
}

struct Shape {
  int64_t batches, rows, cols;
  bool is_strided;
  bool has_rare;
};

class Comparison {
 public:
  Comparison(const View& view, const std::vector<int32_t>& words, const int32_t* dtypes)
      : view_(view), words_(words), dtypes_(dtypes) {}

  // Runs a call of this shape in both ways; returns "" if all bits agree, otherwise a message.
  std::string differs(Shape shape, const RunCall& reference, const RunCall& other) {
    const Header& header = view_.header;
    if (view_.block > 0) shape.cols = (shape.cols + view_.block - 1) / view_.block * view_.block;
    const auto count = static_cast<size_t>(header.operands + header.results);
    memory_.assign(count, {});
    arrays_.assign(count, {});
    random_.rare(shape.has_rare);
    for (size_t i = 0; i < count; ++i) lay_out(i, shape);
    bridge_program call{};
    call.code = words_.data();
    call.words = static_cast<int64_t>(words_.size());
    call.dims = 2;
    call.batch_dims = 1;
    call.size[0] = shape.batches;
    call.size[1] = shape.rows;
    call.cols = call.index_cols = shape.cols;
    call.operands = header.operands;
    call.results = header.results;
    call.operand = arrays_.data();
    call.result = arrays_.data() + header.operands;
    std::string error = reference(call, memory_);
    if (!error.empty()) return error;
    const auto expected = memory_;
    for (auto i = static_cast<size_t>(header.operands); i < count; ++i)
      memset(memory_[i].data(), 0x55, memory_[i].size());
    error = other(call, memory_);
    if (!error.empty() || memory_ == expected) return error;
    return "the compiled program gives other bits than the interpreter on " +
           std::to_string(shape.batches) + " x " + std::to_string(shape.rows) + " x " +
           std::to_string(shape.cols);
  }

 private:
  Role role_of(size_t i) const {
    const auto number = static_cast<int32_t>(i);
    return number < view_.header.operands ? view_.operand_role(number)
                                          : view_.result_role(number - view_.header.operands);
  }

  int32_t block_of(size_t i) const {
    const auto number = static_cast<int32_t>(i);
    return number < view_.header.operands ? view_.operand_block(number)
                                          : view_.result_block(number - view_.header.operands);
  }

  bool has_pairs(size_t i) const {
    const auto number = static_cast<int32_t>(i);
    return number < view_.header.operands ? view_.operand_has_pairs(number)
                                          : view_.result_has_pairs(number - view_.header.operands);
  }

  void lay_out(size_t i, const Shape& shape) {
    const Role role = role_of(i);
    const bool is_result = static_cast<int32_t>(i) >= view_.header.operands;
    const bool has_rows = role != Role::row && role != Role::integer;
    const bool has_cols = role != Role::per_row && role != Role::label && role != Role::integer;
    const int32_t block = block_of(i);
    const int64_t cols = !has_cols              ? 1
                         : role == Role::halves ? 2 * shape.cols
                         : block > 0            ? shape.cols / block
                                                : shape.cols;
    // The columns of a column sum are adjacent.
    const bool is_apart = shape.is_strided && !(is_result && role == Role::row);
    const int64_t step = is_apart ? 3 : 1, rows = has_rows ? shape.rows : 1;
    bridge_program_array& array = arrays_[i];
    array.dtype = dtypes_[i];
    array.pairs = has_pairs(i) ? 1 : block;
    array.col_stride = has_cols ? step * (array.pairs == 1 ? 2 : 1) : 0;
    // Tables of strided calls are broadcast along the columns.
    if (role == Role::table && shape.is_strided) array.col_stride = 0;
    array.stride[1] = has_rows ? cols * step + (shape.is_strided ? 5 : 0) : 0;
    // Batches have gaps. In calls without strides the gap is 8 elements, which keeps batches
    // aligned to vectors.
    array.stride[0] = rows * (cols * step + (shape.is_strided ? 5 : 8));
    const int64_t elements = shape.batches * array.stride[0] + cols * step;
    const int64_t bytes = element_bytes(array.dtype);
    memory_[i].assign(static_cast<size_t>(elements * bytes), 0x55);
    array.data = memory_[i].data();
    if (is_result) return;
    for (int64_t e = 0; e < elements; ++e)
      put_element(memory_[i].data() + e * bytes, role, i, shape);
  }

  void put_element(char* to, Role role, size_t i, const Shape& shape) {
    const int32_t dtype = dtypes_[i];
    if (role == Role::mask) return put(to, static_cast<uint8_t>(random_.below(2)));
    if (role == Role::label || role == Role::integer) {
      const int64_t value = random_.below(role == Role::label ? 2 * shape.cols + 2 : 1 << 30);
      memcpy(to, &value, static_cast<size_t>(element_bytes(dtype)));  // the low bytes come first
      return;
    }
    put_number(to, dtype, random_.number());
  }

  const View& view_;
  const std::vector<int32_t>& words_;
  const int32_t* const dtypes_;
  Random random_;
  Memory memory_;
  std::vector<bridge_program_array> arrays_;
};

}  // namespace

std::string compare(const View& view, const std::vector<int32_t>& words, const int32_t* dtypes,
                    const RunCall& reference, const RunCall& other) {
  // Rows shorter than a step; several rows in a piece and rows of several pieces; column sums of
  // several chunks; rows read in vectors by a GPU, for each of its kernels, in several batches
  // because a single batch may go to the column kernel; rows of no column, the only short ones of a
  // program with large blocks; and many rows with a part of a step at the end, where labels lie and
  // no special value hides an error.
  static const Shape shapes[] = {
      {1, 1, 1, false, true},      {2, 5, 7, false, true},     {1, 37, 40, true, true},
      {1, 3, 0, false, true},      {1, 300, 33, false, false}, {2, 3, 100, false, true},
      {1, 19, 64, true, false},    {1, 140, 65, false, true},  {1, 2, 1024, false, false},
      {2, 2, 1030, true, false},   {1, 3, 3333, false, true},  {1, 21, 64, false, true},
      {1, 9, 512, false, true},    {1, 2, 4608, false, true},  {1, 1, 9216, false, false},
      {1, 3, 4096, false, true},   {1, 60, 271, false, false}, {1, 20, 128, false, false},
      {1, 140, 128, false, false}, {1, 9, 32, false, true},    {1, 21, 8, false, true},
      {2, 3, 520, false, true},    {1, 21, 256, false, true},  {2, 3, 0, true, true},
      {2, 3, 64, false, true},
  };
  Comparison comparison(view, words, dtypes);
  for (const Shape& shape : shapes) {
    std::string why = comparison.differs(shape, reference, other);
    if (!why.empty()) return why;
  }
  return "";
}

}  // namespace bridge::interpreter
