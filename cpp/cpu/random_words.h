// The random words of runs of elements: Philox4x32-10 (math/philox.h) on as many counters at a time
// as a vector holds. For the files that are compiled once for each instruction set: include it
// there only.
#ifndef BRIDGE_CPU_RANDOM_WORDS_H_
#define BRIDGE_CPU_RANDOM_WORDS_H_

#include "cpu/tile.h"
#include "math/philox.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

#if defined(__AVX512F__)
constexpr int kCounterBytes = 64;
// GCC says of the unmasked functions that they read what nothing wrote.
constexpr __mmask8 kAllCounters = 0xFF;
#elif defined(__AVX2__)
constexpr int kCounterBytes = 32;
#else
constexpr int kCounterBytes = 16;
#endif
// How many counters are computed side by side, a 64-bit lane for each.
constexpr int kCounters = kCounterBytes / 8;
constexpr int kWordsAtOnce = 4 * kCounters;

// One 32-bit word of each counter in the low half of its lane. What stands in the high halves is of
// no account until the words are put together: multiplying does not look at it.
typedef uint64_t Counters __attribute__((vector_size(kCounterBytes)));

// The 64-bit products of the low halves. The compiler would multiply whole lanes.
inline __attribute__((always_inline)) Counters multiply(Counters a, uint32_t b) {
#if defined(__AVX512F__)
  return (Counters)_mm512_maskz_mul_epu32(kAllCounters, (__m512i)a, _mm512_set1_epi64(b));
#elif defined(__AVX2__)
  return (Counters)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(b));
#elif defined(__SSE2__)
  return (Counters)_mm_mul_epu32((__m128i)a, _mm_set1_epi64x(b));
#else
  return (a & 0xFFFFFFFFu) * b;
#endif
}

// The high halves of the products, in the low halves. Where vectors are 64 bytes long, a
// permutation leaves to the multiplications the unit that shifts would take from them.
inline __attribute__((always_inline)) Counters high_halves(Counters products) {
#if defined(__AVX512F__)
  return (Counters)_mm512_maskz_shuffle_epi32(0xFFFF, (__m512i)products, (_MM_PERM_ENUM)0xF5);
#else
  return products >> 32;
#endif
}

// The order of the counters in a vector: the even lanes hold the first half of them, so that
// interleaving pairs of lanes, 128 bits by 128 bits, puts the words into the elements' order.
template <int kCount>
struct CounterOrder;
template <>
struct CounterOrder<8> {
  static constexpr uint64_t kOrder[] = {0, 4, 1, 5, 2, 6, 3, 7};
};
template <>
struct CounterOrder<4> {
  static constexpr uint64_t kOrder[] = {0, 2, 1, 3};
};
template <>
struct CounterOrder<2> {
  static constexpr uint64_t kOrder[] = {0, 1};
};

inline __attribute__((always_inline)) Counters even_lanes(Counters a, Counters b) {
#if defined(__AVX512F__)
  return (Counters)_mm512_maskz_unpacklo_epi64(kAllCounters, (__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (Counters)_mm256_unpacklo_epi64((__m256i)a, (__m256i)b);
#else
  return Counters{a[0], b[0]};
#endif
}

inline __attribute__((always_inline)) Counters odd_lanes(Counters a, Counters b) {
#if defined(__AVX512F__)
  return (Counters)_mm512_maskz_unpackhi_epi64(kAllCounters, (__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (Counters)_mm256_unpackhi_epi64((__m256i)a, (__m256i)b);
#else
  return Counters{a[1], b[1]};
#endif
}

// The words of elements with one key and offset, drawn ahead into a buffer of the first-level
// cache.
class RandomWords {
 public:
  // The most elements that may be asked for at once, and that are drawn at once: while words are
  // drawn, memory rests.
  static constexpr int64_t kMost = 512;

  void begin(uint64_t key, uint64_t offset) {
    for (int round = 0; round < math::Philox::kRounds; ++round) {
      const uint32_t r = static_cast<uint32_t>(round);
      key0_[round] = static_cast<uint32_t>(key) + r * math::Philox::kWeyl0;
      key1_[round] = static_cast<uint32_t>(key >> 32) + r * math::Philox::kWeyl1;
    }
    offset_ = offset;
    first_ = 0;
    held_ = 0;
  }

  // The words of the elements index, index + 1, ... (modulo 2^64), `count` of them; behind these
  // lie up to a step of any value. `ahead` says how many elements from `index` on will be asked
  // for, one after the other.
  const uint32_t* at(uint64_t index, int64_t count, int64_t ahead) {
    const uint64_t behind = index - first_;
    if (behind >= static_cast<uint64_t>(held_) ||
        behind + static_cast<uint64_t>(count) > static_cast<uint64_t>(held_))
      draw(index, ahead > count ? ahead : count);
    return words_ + (index - first_);
  }

 private:
  __attribute__((noinline)) void draw(uint64_t index, int64_t count) {
    first_ = index & ~uint64_t{3};
    count = smaller(count, kMost) + static_cast<int64_t>(index & 3);
    const int64_t steps = (count + kWordsAtOnce - 1) / kWordsAtOnce;
    held_ = steps * kWordsAtOnce;
    Counters order{};
    for (int lane = 0; lane < kCounters; ++lane)
      order[lane] = CounterOrder<kCounters>::kOrder[lane];
    const Counters offset0 = Counters{} + (offset_ & 0xFFFFFFFFu);
    const Counters offset1 = Counters{} + (offset_ >> 32);
    // The element index wraps around at 2^64, and so its quarter at 2^62.
    constexpr uint64_t kGroups = ~uint64_t{0} >> 2;
    const uint64_t group = first_ / 4;
    uint32_t* to = words_;
    for (int64_t step = 0; step < steps; ++step, to += kWordsAtOnce) {
      Counters c0 = ((group + static_cast<uint64_t>(step * kCounters)) + order) & kGroups;
      Counters c1 = c0 >> 32, c2 = offset0, c3 = offset1;
#pragma GCC unroll 10
      for (int round = 0; round < math::Philox::kRounds; ++round) {
        const Counters product0 = multiply(c0, math::Philox::kMultiplier0);
        const Counters product1 = multiply(c2, math::Philox::kMultiplier1);
        c0 = high_halves(product1) ^ c1 ^ (Counters{} + key0_[round]);
        c1 = product1;
        c2 = high_halves(product0) ^ c3 ^ (Counters{} + key1_[round]);
        c3 = product0;
      }
      const Counters low = (c0 & 0xFFFFFFFFu) | (c1 << 32);
      const Counters high = (c2 & 0xFFFFFFFFu) | (c3 << 32);
      const Counters begin = even_lanes(low, high), end = odd_lanes(low, high);
      memcpy(to, &begin, sizeof begin);
      memcpy(to + 2 * kCounters, &end, sizeof end);
    }
  }

  // The most elements from the middle of a counter on, in whole steps, and what is read past them.
  alignas(64) uint32_t words_[kMost + 2 * kWordsAtOnce + kStep];
  uint32_t key0_[math::Philox::kRounds], key1_[math::Philox::kRounds];
  uint64_t offset_, first_;
  int64_t held_;
};

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_CPU_RANDOM_WORDS_H_
