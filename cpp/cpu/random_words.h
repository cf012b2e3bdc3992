// The random words of runs of elements: Philox4x32-10 (math/philox.h) on as many counters at a time
// as a vector holds. Include this only in files that are compiled once for each instruction set.
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
// GCC warns that the unmasked functions read uninitialised values.
constexpr __mmask8 kAllCounters = 0xFF;
#elif defined(__AVX2__)
constexpr int kCounterBytes = 32;
#else
constexpr int kCounterBytes = 16;
#endif
// The number of counters computed side by side, each in a 64-bit lane.
constexpr int kCounters = kCounterBytes / 8;
constexpr int kWordsAtOnce = 4 * kCounters;

// One 32-bit word of each counter, in the low half of its lane. The high halves are arbitrary:
// multiplications ignore them, and they are masked when the words are combined.
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

// The high halves of the products, in the low halves. With vectors of 64 bytes, a permutation
// replaces the shift, which would occupy a unit that the multiplications need.
inline __attribute__((always_inline)) Counters high_halves(Counters products) {
#if defined(__AVX512F__)
  return (Counters)_mm512_maskz_shuffle_epi32(0xFFFF, (__m512i)products, (_MM_PERM_ENUM)0xF5);
#else
  return products >> 32;
#endif
}

// The order of the counters in a vector. The even lanes hold the first half of the counters, so
// that interleaving pairs of lanes within each 128 bits puts the words into the order of the
// elements.
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

// The random words of elements with one key and offset, drawn ahead into a buffer in the
// first-level cache.
class RandomWords {
 public:
  // The largest number of elements that can be requested at once, and that are drawn at once. It is
  // small because memory is idle while words are drawn.
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

  // Returns the words of `count` elements: index, index + 1, ... (modulo 2^64). Up to one step of
  // arbitrary words follows them. `ahead` is the number of elements from `index` on that will be
  // requested in sequence.
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
    // The element index wraps around at 2^64, and so its quarter wraps at 2^62.
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

  // Room for the most elements from the middle of a counter on, rounded up to whole steps, and for
  // reads past the end.
  alignas(64) uint32_t words_[kMost + 2 * kWordsAtOnce + kStep];
  uint32_t key0_[math::Philox::kRounds], key1_[math::Philox::kRounds];
  uint64_t offset_, first_;
  int64_t held_;
};

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_CPU_RANDOM_WORDS_H_
