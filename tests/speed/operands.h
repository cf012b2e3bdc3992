// The arrays of a call: where they lie, what they hold before it, and how much of them the call
// must move.
#ifndef BRIDGE_TESTS_SPEED_OPERANDS_H_
#define BRIDGE_TESTS_SPEED_OPERANDS_H_

#include <bridge/bridge.h>
#include <stdint.h>

#include <vector>

#include "math/convert.h"
#include "walks/dtypes.h"

namespace bridge::speed {

// Not zeros: a GPU moves and multiplies those at less power, and so at a higher clock.
enum class Values {
  numbers,  // even between low and low + span
  mask,     // bytes, one in eight not 0
  result    // NaN, so that an element that a kernel leaves out is seen
};

struct Operand {
  Values values;
  int32_t dtype;  // of numbers and results
  int64_t count;
  float low = -4;
  float span = 8;
  void* data = nullptr;

  int64_t bytes() const { return count * (values == Values::mask ? 1 : dtype_bytes(dtype)); }
};

// The operands of one call, one behind the other from an address on. With the default address only
// to learn how large they are.
class Operands {
 public:
  static constexpr int64_t kAlignment = 256;

  explicit Operands(void* base = nullptr)
      : base_(base == nullptr ? uintptr_t{kAlignment} : reinterpret_cast<uintptr_t>(base)) {}

  // `moved` of its elements are read or written by the call; -1: all.
  void* add(Operand operand, int64_t moved = -1) {
    operand.data = reinterpret_cast<void*>(base_ + static_cast<uintptr_t>(bytes_));
    bytes_ += (operand.bytes() + kAlignment - 1) / kAlignment * kAlignment;
    moved_ += moved < 0 ? operand.bytes() : operand.bytes() / operand.count * moved;
    all_.push_back(operand);
    return operand.data;
  }
  void* numbers(int32_t dtype, int64_t count, int64_t moved = -1) {
    return add({Values::numbers, dtype, count}, moved);
  }
  void* result(int32_t dtype, int64_t count) { return add({Values::result, dtype, count}); }

  const std::vector<Operand>& all() const { return all_; }
  int64_t bytes() const { return bytes_; }
  int64_t moved() const { return moved_; }

 private:
  uintptr_t base_;
  int64_t bytes_ = 0;
  int64_t moved_ = 0;
  std::vector<Operand> all_;
};

// The finaliser of MurmurHash3: every bit of the index reaches every bit of the word.
BRIDGE_HD uint64_t random_word(uint64_t index) {
  index ^= index >> 33;
  index *= 0xFF51AFD7ED558CCDu;
  index ^= index >> 33;
  index *= 0xC4CEB9FE1A85EC53u;
  return index ^ (index >> 33);
}

// What element i of an operand that is no result holds, by a seed.
BRIDGE_HD void store_value(const Operand& operand, uint64_t seed, int64_t i) {
  const uint64_t word = random_word(seed + static_cast<uint64_t>(i));
  if (operand.values == Values::mask) {
    static_cast<uint8_t*>(operand.data)[i] = word % 8 == 0;
  } else {
    const float unit = (static_cast<float>(word >> 40) + 0.5f) * 0x1p-24f;
    const float value = operand.low + operand.span * unit;
    if (operand.dtype == BRIDGE_FLOAT32)
      static_cast<float*>(operand.data)[i] = value;
    else if (operand.dtype == BRIDGE_BFLOAT16)
      static_cast<math::bfloat16*>(operand.data)[i] = math::round_to<math::bfloat16>(value);
    else
      static_cast<math::float16*>(operand.data)[i] = math::round_to<math::float16>(value);
  }
}

// Whether element i of a result is neither NaN nor infinite.
BRIDGE_HD bool is_finite(const Operand& result, int64_t i) {
  if (result.dtype == BRIDGE_FLOAT32)
    return (static_cast<const uint32_t*>(result.data)[i] & 0x7FFFFFFFu) < 0x7F800000u;
  const uint32_t infinity = result.dtype == BRIDGE_BFLOAT16 ? 0x7F80u : 0x7C00u;
  return (static_cast<const uint16_t*>(result.data)[i] & 0x7FFFu) < infinity;
}

}  // namespace bridge::speed

#endif  // BRIDGE_TESTS_SPEED_OPERANDS_H_
