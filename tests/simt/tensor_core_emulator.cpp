#include "tensor_core_emulator.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <vector>

namespace bridge::simt::emulator {
namespace {

Generation g_generation = kGenerations[1];

// A number as significand * 2^(exponent - bits), where `bits` of the significand are behind the
// point.
struct Number {
  int64_t significand;
  int exponent, bits;
  bool is_nan = false;
  int infinity = 0;  // its sign
};

Number number_of(uint32_t word, int exponent_bits, int bits) {
  const int most = (1 << exponent_bits) - 1;
  const int field = static_cast<int>(word >> bits) & most;
  const auto fraction = static_cast<int64_t>(word & ((1u << bits) - 1));
  const bool is_negative = (word >> (bits + exponent_bits) & 1) != 0;
  Number found{fraction, std::max(field, 1) - most / 2, bits};
  if (field == most) {
    found.is_nan = fraction != 0;
    found.infinity = found.is_nan ? 0 : is_negative ? -1 : 1;
    found.significand = 1;
  } else if (field != 0) {
    found.significand += int64_t{1} << bits;
  }
  if (is_negative) found.significand = -found.significand;
  return found;
}

Number number_of(float value) {
  uint32_t word;
  std::memcpy(&word, &value, sizeof word);
  return number_of(word, 8, 23);
}

int sign_of(const Number& x) { return x.significand > 0 ? 1 : x.significand < 0 ? -1 : 0; }

Number product_of(const Number& a, const Number& b) {
  Number found{a.significand * b.significand, a.exponent + b.exponent, a.bits + b.bits};
  if (a.infinity != 0 || b.infinity != 0) found.infinity = sign_of(a) * sign_of(b);
  found.is_nan =
      a.is_nan || b.is_nan || ((a.infinity != 0 || b.infinity != 0) && found.infinity == 0);
  return found;
}

// Returns significand * 2^shift, cut towards zero.
int64_t shifted(int64_t significand, int shift) {
  if (significand == 0) return 0;
  const int64_t size = std::abs(significand);
  const int64_t cut = shift >= 0 ? size << shift : shift > -63 ? size >> -shift : 0;
  return significand < 0 ? -cut : cut;
}

// Returns sum * 2^exponent, cut towards zero to float32.
float cut_to_float(int64_t sum, int exponent) {
  if (sum == 0) return 0.0f;
  int length = 0;
  while (std::abs(sum) >> length != 0) ++length;
  if (exponent + length > 128) return std::copysign(INFINITY, sum < 0 ? -1.0f : 1.0f);
  const int lost = std::max({0, length - 24, -149 - exponent});
  return std::ldexp(static_cast<float>(shifted(sum, -lost)), exponent + lost) + 0.0f;
}

float sum_of(const std::vector<Number>& numbers) {
  bool is_nan = false, has_infinity[2] = {};
  int largest = std::numeric_limits<int>::min();
  for (const Number& x : numbers) {
    is_nan = is_nan || x.is_nan;
    if (x.infinity != 0) has_infinity[x.infinity > 0] = true;
    const int own = x.significand == 0 ? g_generation.zero_exponent : x.exponent;
    largest = std::max(largest, own);
  }
  if (is_nan || (has_infinity[0] && has_infinity[1])) return NAN;
  if (has_infinity[0] || has_infinity[1]) return has_infinity[1] ? INFINITY : -INFINITY;
  int64_t sum = 0;
  const int bits = g_generation.fraction_bits;
  for (const Number& x : numbers)
    sum += shifted(x.significand, bits - x.bits + x.exponent - largest);
  return cut_to_float(sum, largest - bits);
}

// The copies that a thread has begun, in groups; the last group has not ended. They are done when
// the thread waits, so that a kernel that does not wait finds shared memory as it was.
struct Copy {
  void* to;
  const void* from;
};
using Groups = std::deque<std::vector<Copy>>;

Groups& groups() {
  static std::map<int, Groups> of_threads;
  static int64_t launch = -1;
  if (launch != launches()) of_threads.clear();
  launch = launches();
  Groups& found = of_threads[thread_index()];
  if (found.empty()) found.emplace_back();
  return found;
}

}  // namespace

Generation& generation() { return g_generation; }

float multiply_add(const uint16_t (&a)[16], const uint16_t (&b)[16], bool are_float16, float c) {
  const auto read = [&](uint16_t word) {
    return are_float16 ? number_of(word, 5, 10) : number_of(word, 8, 7);
  };
  for (int first = 0; first < 16; first += g_generation.terms) {
    std::vector<Number> numbers = {number_of(c)};
    for (int i = first; i < first + g_generation.terms; ++i)
      numbers.push_back(product_of(read(a[i]), read(b[i])));
    c = sum_of(numbers);
  }
  return c;
}

void begin_copy16(void* shared, const void* global, bool has_data) {
  check_alignment(shared, 16);
  if (has_data) check_alignment(global, 16);
  groups().back().push_back({shared, has_data ? global : nullptr});
}

void end_of_copies() { groups().emplace_back(); }

void wait_for_copies(int count) {
  Groups& all = groups();
  while (static_cast<int>(all.size()) > count + 1) {
    for (const Copy& copy : all.front()) {
      const Vector16 zeros{};
      std::memcpy(copy.to, copy.from == nullptr ? &zeros : copy.from, sizeof zeros);
    }
    all.pop_front();
  }
}

}  // namespace bridge::simt::emulator
