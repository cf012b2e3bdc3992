// The definition of bias_dropout_add, one element at a time, for comparison bit for bit; and the
// random words from a Philox of its own.
#ifndef BRIDGE_TESTS_BIAS_DROPOUT_ADD_REFERENCE_H_
#define BRIDGE_TESTS_BIAS_DROPOUT_ADD_REFERENCE_H_

#include <bridge/bridge.h>

#include <array>
#include <vector>

#include "array_reference.h"

namespace bridge::reference {

// As in the paper: rounds of multiplying, and a key that is bumped between them.
inline std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 4> counter,
                                             std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    if (round > 0) key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
    const uint64_t a = uint64_t{0xD2511F53u} * counter[0], b = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
  }
  return counter;
}

inline uint32_t word_of(uint64_t seed, uint64_t offset, uint64_t element) {
  auto low = [](uint64_t x) { return static_cast<uint32_t>(x); };
  auto high = [](uint64_t x) { return static_cast<uint32_t>(x >> 32); };
  const uint64_t group = element / 4;
  return philox4x32_10({low(group), high(group), low(offset), high(offset)},
                       {low(seed), high(seed)})[element % 4];
}

inline uint64_t integer_of(const bridge_integers& integers, int64_t batch) {
  return integers.data == nullptr
             ? 0
             : static_cast<uint64_t>(integers.data[batch * integers.batch_stride]);
}

template <class Real>
void run_dropout_in(const bridge_bias_dropout_add& call) {
  store_results<Real>(call, [&](int64_t batch, int64_t row, int64_t col) {
    bool kept = call.threshold == 0;
    if (call.threshold > 0 && call.threshold < int64_t{1} << 32) {
      const uint64_t element = integer_of(call.start, batch) +
                               static_cast<uint64_t>(row) * static_cast<uint64_t>(call.index_cols) +
                               static_cast<uint64_t>(col);
      kept = word_of(integer_of(call.seed, batch), integer_of(call.offset, batch), element) >=
             call.threshold;
    }
    Real value = 0;
    if (kept) {
      value = load<Real>(call.input, batch, row, col);
      if (call.threshold > 0) value = value * static_cast<Real>(call.factor);
    }
    if (call.residual.data != nullptr) value = load<Real>(call.residual, batch, row, col) + value;
    return value;
  });
}

inline void run(const bridge_bias_dropout_add& call) {
  bool any_double = false;
  for (const bridge_array* array :
       {&call.input.full, &call.input.row, &call.residual, &call.output.full, &call.output.row})
    any_double = any_double || (array->data != nullptr && array->dtype == BRIDGE_FLOAT64);
  any_double ? run_dropout_in<double>(call) : run_dropout_in<float>(call);
}

}  // namespace bridge::reference

#endif  // BRIDGE_TESTS_BIAS_DROPOUT_ADD_REFERENCE_H_
