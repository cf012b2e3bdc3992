// Checks maps between places on the CPU against loops over their definition: random sizes, tables
// and dtypes, on every instruction set and several threads. Arrays have exactly their extent.
#include <bridge/taps.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "arena.h"
#include "random_arrays.h"
#include "row_sum_reference.h"

namespace {

using namespace bridge::random;  // NOLINT: the parts of a check
namespace reference = bridge::reference;

template <class Real>
struct Definition {
  const bridge_taps& call;

  Real x(int64_t outer, int64_t place, int64_t inner) const {
    return reference::load<Real>(call.x, call.dtype,
                                 (outer * call.places + place) * call.inner + inner);
  }
  Real weight(int64_t tap, int64_t output) const {
    return static_cast<const Real*>(call.weights)[tap * call.outputs + output];
  }

  int32_t largest(int64_t outer, int64_t output, int64_t inner) const {
    int32_t found = call.table[output];
    Real most = x(outer, found < 0 ? 0 : found, inner);
    for (int64_t tap = 1; tap < call.taps; ++tap) {
      const int32_t place = call.table[tap * call.outputs + output];
      if (place < 0) break;
      const Real one = x(outer, place, inner);
      if (one > most || one != one) found = place, most = one;
    }
    return found;
  }

  Real value(int64_t outer, int64_t output, int64_t inner) const {
    if (call.kind == BRIDGE_TAPS_ROW_MEAN) {
      std::vector<Real> terms;
      for (int64_t p = 0; p < call.places; ++p) terms.push_back(x(outer, p, inner));
      return reference::row_sum(terms) / Real(call.places);
    }
    Real sum = 0;
    for (int64_t tap = 0; tap < call.taps; ++tap) {
      const int32_t place = call.table[tap * call.outputs + output];
      if (place < 0) break;
      const Real one = x(outer, place, inner);
      if (call.kind == BRIDGE_TAPS_WEIGHTED)
        sum = tap == 0 ? one * weight(tap, output) : std::fma(one, weight(tap, output), sum);
      else if (call.kind == BRIDGE_TAPS_SHARES)
        sum = tap == 0 ? one / weight(tap, output) : sum + one / weight(tap, output);
      else
        sum = tap == 0 ? one : sum + one;
    }
    return call.kind == BRIDGE_TAPS_AVERAGE ? sum / weight(0, output) : sum;
  }

  bool is_right() const {
    std::vector<char> expected(8);
    for (int64_t i = 0; i < call.outer * call.outputs * call.inner; ++i) {
      const int64_t inner = i % call.inner, output = i / call.inner % call.outputs;
      const int64_t outer = i / call.inner / call.outputs;
      if (call.kind == BRIDGE_TAPS_LARGEST) {
        if (static_cast<const int32_t*>(call.result)[i] != largest(outer, output, inner))
          return false;
        continue;
      }
      reference::store(expected.data(), call.dtype, 0, value(outer, output, inner));
      const Real own = reference::load<Real>(expected.data(), call.dtype, 0);
      const Real found = reference::load<Real>(call.result, call.dtype, i);
      if (std::isnan(own) != std::isnan(found)) return false;
      if (!std::isnan(own) && (own != found || std::signbit(own) != std::signbit(found)))
        return false;
    }
    return true;
  }
};

void check_one(const char* isa) {
  static const int32_t kinds[] = {BRIDGE_TAPS_WEIGHTED, BRIDGE_TAPS_AVERAGE, BRIDGE_TAPS_SHARES,
                                  BRIDGE_TAPS_LARGEST, BRIDGE_TAPS_ROW_MEAN};
  static const int64_t outers[] = {1, 2, 5, 16, 19, 37};
  static const int64_t sizes[] = {1, 2, 7, 40, 300};
  static const int64_t inners[] = {1, 1, 1, 2, 16, 17, 64, 100};
  static const int64_t long_rows[] = {1, 31, 256, 1000, 1024, 2500};
  Arena arena;
  bridge_taps call{};
  call.kind = pick_from(kinds);
  const bool is_mean = call.kind == BRIDGE_TAPS_ROW_MEAN;
  call.dtype = static_cast<int32_t>(pick(4));
  call.outer = pick_from(outers), call.inner = pick_from(inners);
  call.places = is_mean ? pick_from(long_rows) : chance(5) ? 5000 : pick_from(sizes);
  call.outputs = is_mean ? 1 : pick_from(sizes);
  call.taps = is_mean ? 0 : 1 + pick(9);
  const int64_t width = bridge::element_bytes(call.dtype);
  const bool is_double = call.dtype == BRIDGE_FLOAT64;
  const auto drawn = [&](int64_t count, int32_t dtype) {
    char* const data = arena.allocate(count * bridge::element_bytes(dtype));
    fill(data, dtype, count);
    return data;
  };
  call.x = drawn(call.outer * call.places * call.inner, call.dtype);
  if (!is_mean) {
    const int64_t count = call.taps * call.outputs;
    auto* table = reinterpret_cast<int32_t*>(arena.allocate(count * 4));
    for (int64_t output = 0; output < call.outputs; ++output) {
      const int64_t present = pick(call.taps + 1);
      for (int64_t tap = 0; tap < call.taps; ++tap)
        table[tap * call.outputs + output] =
            tap < present ? static_cast<int32_t>(pick(call.places)) : -1;
    }
    call.table = table;
    if (call.kind != BRIDGE_TAPS_LARGEST)
      call.weights = drawn(call.kind == BRIDGE_TAPS_AVERAGE ? call.outputs : count,
                           is_double ? BRIDGE_FLOAT64 : BRIDGE_FLOAT32);
  }
  call.result = arena.allocate(call.outer * call.outputs * call.inner *
                               (call.kind == BRIDGE_TAPS_LARGEST ? 4 : width));
  const auto threads = static_cast<int32_t>(1 + pick(3));
  const bridge_executor executor = bridge_pool(threads);
  const bool is_run = bridge_taps_cpu(&call, &executor) == BRIDGE_OK;
  const bool is_right =
      is_double ? Definition<double>{call}.is_right() : Definition<float>{call}.is_right();
  check(is_run && is_right, std::string(isa) + ": kind " + std::to_string(call.kind) + ", dtype " +
                                std::to_string(call.dtype) + ", [" + std::to_string(call.outer) +
                                ", " + std::to_string(call.places) + " to " +
                                std::to_string(call.outputs) + ", " + std::to_string(call.inner) +
                                "], " + std::to_string(call.taps) + " taps, threads " +
                                std::to_string(threads) + (is_run ? "" : bridge_last_error()));
}

}  // namespace

int main(int count, char** arguments) {
  const int64_t rounds = count > 1 ? std::atoll(arguments[1]) : 150;
  random_bits.seed(count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 1);
  check(bridge_taps_cpu(nullptr, nullptr) == BRIDGE_INVALID_ARGUMENT, "a null call is refused");
  for (const char* const* isa = bridge_cpu_isas(); *isa != nullptr; ++isa) {
    if (bridge_set_cpu_isa(*isa) != BRIDGE_OK) continue;
    for (int64_t i = 0; i < rounds; ++i) check_one(*isa);
  }
  std::printf("taps_check: %d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
