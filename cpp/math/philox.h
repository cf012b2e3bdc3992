// Philox4x32-10: four random words for each counter and key. Salmon, Moraes, Dror and Shaw,
// "Parallel random numbers: as easy as 1, 2, 3", SC11.
#pragma once

#include <cstdint>

#include "math/scalar.h"

namespace bridge::math {

struct Philox {
  static constexpr int kRounds = 10;
  static constexpr std::uint32_t kMultiplier0 = 0xD2511F53u;
  static constexpr std::uint32_t kMultiplier1 = 0xCD9E8D57u;
  // The key of a round is the previous key plus these constants: the fractions of the golden ratio
  // and of the square root of three.
  static constexpr std::uint32_t kWeyl0 = 0x9E3779B9u;
  static constexpr std::uint32_t kWeyl1 = 0xBB67AE85u;

  std::uint32_t words[4];
};

// The full 64-bit product.
BRIDGE_HD std::uint64_t wide_product(std::uint32_t a, std::uint32_t b) {
#if defined(__CUDA_ARCH__)
  // nvcc compiles the product of widened factors to two instructions, the second of which adds
  // zero.
  std::uint64_t product;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
  return product;
#else
  return static_cast<std::uint64_t>(a) * b;
#endif
}

// The random words of the elements 4 * group to 4 * group + 3: the counter has `group` as its low
// half and `offset` as its high half, and `key` is the key.
BRIDGE_HD Philox philox(std::uint64_t key, std::uint64_t offset, std::uint64_t group) {
  std::uint32_t c0 = static_cast<std::uint32_t>(group);
  std::uint32_t c1 = static_cast<std::uint32_t>(group >> 32);
  std::uint32_t c2 = static_cast<std::uint32_t>(offset);
  std::uint32_t c3 = static_cast<std::uint32_t>(offset >> 32);
  std::uint32_t k0 = static_cast<std::uint32_t>(key);
  std::uint32_t k1 = static_cast<std::uint32_t>(key >> 32);
#if defined(__CUDA_ARCH__)  // nvcc's host compiler would refuse it
#pragma unroll
#endif
  for (int round = 0; round < Philox::kRounds; ++round) {
    const std::uint64_t product0 = wide_product(c0, Philox::kMultiplier0);
    const std::uint64_t product1 = wide_product(c2, Philox::kMultiplier1);
    c0 = static_cast<std::uint32_t>(product1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(product1);
    c2 = static_cast<std::uint32_t>(product0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(product0);
    k0 += Philox::kWeyl0;
    k1 += Philox::kWeyl1;
  }
  return {{c0, c1, c2, c3}};
}

}  // namespace bridge::math
