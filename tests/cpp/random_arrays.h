// Random numbers, and the count of checks that passed and failed.
#ifndef BRIDGE_TESTS_RANDOM_ARRAYS_H_
#define BRIDGE_TESTS_RANDOM_ARRAYS_H_

#include <bridge/bridge.h>
#include <math.h>
#include <stdio.h>

#include <random>
#include <string>

#include "array_reference.h"

namespace bridge::random {

inline int passed = 0, failed = 0;

inline void check(bool holds, const std::string& what) {
  ++(holds ? passed : failed);
  if (!holds) fprintf(stderr, "FAILED %s\n", what.c_str());
}

inline std::mt19937_64 random_bits;
inline int64_t pick(int64_t count) {
  return static_cast<int64_t>(random_bits() % static_cast<uint64_t>(count));
}
inline bool chance(int percent) { return pick(100) < percent; }
template <class T, size_t n>
T pick_from(const T (&values)[n]) {
  return values[pick(n)];
}

// Random values of a dtype, one in sixteen of them special.
inline void fill(void* data, int32_t dtype, int64_t count) {
  static const double special[] = {
      0.0,   -0.0,  INFINITY, -INFINITY, NAN,   1e-40,   -1e-40, 65504, -7e4, 1e-320, 3e38,
      -3e38, 1e300, -12.0,    0.5,       -0.75, 6.1e-5f, 1e-7,   -13.3, -5.5, 88.0,   -38.0};
  std::normal_distribution<double> normal(0.0, 2.5);
  for (int64_t i = 0; i < count; ++i) {
    const double value =
        pick(16) == 0 ? special[pick(sizeof special / sizeof special[0])] : normal(random_bits);
    bridge::reference::store(data, dtype, i, value);
  }
}

}  // namespace bridge::random

#endif  // BRIDGE_TESTS_RANDOM_ARRAYS_H_
