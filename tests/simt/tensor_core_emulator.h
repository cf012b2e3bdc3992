// The interface of cpp/cuda/tensor_core.h on the host.
//
// The model of mma is that of MMA-Sim (arXiv:2511.10909, and its program mmasim 2.1.1), whose
// authors compared it with GPUs of each generation; here it has not been compared with a GPU. The
// terms of a group and the accumulator are cut, towards zero, to a number of bits after the point
// of the largest exponent among them. They are added without rounding, and the sum is cut to
// float32. An Ampere adds 16 terms in two groups, a Hopper and a Blackwell in one.
#ifndef BRIDGE_TESTS_SIMT_TENSOR_CORE_EMULATOR_H_
#define BRIDGE_TESTS_SIMT_TENSOR_CORE_EMULATOR_H_

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "math/convert.h"
#include "simt_emulator.h"

namespace bridge::simt {

namespace emulator {

struct Generation {
  const char* name;
  int terms;          // of a group; it divides 16
  int fraction_bits;  // after the point of the largest exponent
  int zero_exponent;  // the exponent of a term that is 0
};
constexpr Generation kGenerations[] = {{"Ampere", 8, 24, -132},
                                       {"Hopper and Blackwell", 16, 25, -133}};

Generation& generation();  // that the emulator has

// Elements as their bits: the sum of 16 products and of c.
float multiply_add(const uint16_t (&a)[16], const uint16_t (&b)[16], bool are_float16, float c);

void begin_copy16(void* shared, const void* global, bool has_data);
void end_of_copies();
void wait_for_copies(int groups);

}  // namespace emulator

template <bool kTransposed>
void load_matrices(const void* row, uint32_t (&words)[4], int line = __builtin_LINE()) {
  emulator::check_alignment(row, 16);
  const int lane = thread_index() % kWarpThreads;
  for (int i = 0; i < 4; ++i) {
    uint16_t pair[2];
    for (int e = 0; e < 2; ++e) {
      const int place = lane % 4 * 2 + e;
      const void* from = row;
      emulator::shuffle(&from, sizeof from, 8 * i + (kTransposed ? place : lane / 4), line);
      const int col = kTransposed ? lane / 4 : place;
      std::memcpy(&pair[e], static_cast<const uint16_t*>(from) + col, sizeof pair[e]);
    }
    std::memcpy(&words[i], pair, sizeof pair);
  }
}

template <class Element>
void multiply_add(const uint32_t (&a)[4], const uint32_t (&b)[2], float (&c)[4],
                  int line = __builtin_LINE()) {
  const int lane = thread_index() % kWarpThreads;
  uint16_t rows[2][16], cols[2][16];
  for (int j = 0; j < 4; ++j) {  // the four lanes of a row hold two columns of each quarter
    uint32_t quarters[4];
    std::memcpy(quarters, a, sizeof quarters);
    emulator::shuffle(quarters, sizeof quarters, lane / 4 * 4 + j, line);
    for (int q = 0; q < 4; ++q) std::memcpy(&rows[q % 2][q / 2 * 8 + 2 * j], &quarters[q], 4);
    for (int col = 0; col < 2; ++col) {
      uint32_t halves[2];
      std::memcpy(halves, b, sizeof halves);
      emulator::shuffle(halves, sizeof halves, (lane % 4 * 2 + col) * 4 + j, line);
      for (int h = 0; h < 2; ++h) std::memcpy(&cols[col][h * 8 + 2 * j], &halves[h], 4);
    }
  }
  constexpr bool kAreFloat16 = std::is_same_v<Element, math::float16>;
  for (int i = 0; i < 4; ++i)
    c[i] = emulator::multiply_add(rows[i / 2], cols[i % 2], kAreFloat16, c[i]);
}

inline void begin_copy16(void* shared, const void* global, bool has_data) {
  emulator::begin_copy16(shared, global, has_data);
}
inline void end_of_copies() { emulator::end_of_copies(); }
template <int kGroups>
void wait_for_copies() {
  emulator::wait_for_copies(kGroups);
}

}  // namespace bridge::simt

#endif  // BRIDGE_TESTS_SIMT_TENSOR_CORE_EMULATOR_H_
