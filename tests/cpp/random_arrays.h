// Random calls on arrays of [batch, rows, cols], and their comparison bit for bit.
#ifndef BRIDGE_TESTS_RANDOM_ARRAYS_H_
#define BRIDGE_TESTS_RANDOM_ARRAYS_H_

#include <bridge/bridge.h>
#include <math.h>
#include <stdio.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "array_reference.h"

namespace bridge::random {

using reference::Memory;

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
template <size_t n>
int64_t pick_from(const int64_t (&values)[n]) {
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

// A call on arrays of [batch, rows, cols] with their memory. add() goes by the sizes in the call;
// the memory's place must have been reserved.
template <class CallOfOp>
struct Arrays {
  CallOfOp call{};
  std::vector<Memory> memory;
  std::string text;

  bridge_array add(int32_t dtype, bool row, bool output) {
    bridge_array array{nullptr, dtype, 0, 0};
    const int64_t rows = row ? 1 : call.rows;
    // Dense; padded rows; batches inside rows; and for inputs also backward or repeated rows.
    const int64_t layout = pick(output ? 4 : 6);
    int64_t row_stride = call.cols + (layout == 1 ? 1 + pick(5) : 0);
    int64_t batch_stride = rows * row_stride + (layout == 2 ? pick(9) : 0);
    if (layout == 3) batch_stride = call.cols, row_stride = call.batch * call.cols;
    if (layout == 4) row_stride = -row_stride;
    if (layout == 5) (chance(50) ? row_stride : batch_stride) = 0;
    const int64_t last_row = (rows - 1) * row_stride, last_batch = (call.batch - 1) * batch_stride;
    const int64_t low = std::min<int64_t>(last_row, 0) + std::min<int64_t>(last_batch, 0);
    const int64_t high = std::max<int64_t>(last_row, 0) + std::max<int64_t>(last_batch, 0);
    const int64_t before = pick(3);
    const int64_t count = std::max<int64_t>(high - low + call.cols, 1) + before + pick(3);
    memory.emplace_back(count * bridge::dtype_bytes(dtype));
    Memory& bytes = memory.back();
    if (!output) fill(bytes.data(), dtype, count);
    array.data = bytes.data() + (before - low) * bridge::dtype_bytes(dtype);
    array.row_stride = row ? 0 : row_stride;
    array.batch_stride = batch_stride;
    text += std::string(output ? " out" : " in") + (row ? ".row" : ".full") + ":" +
            std::to_string(dtype) + "/" + std::to_string(layout);
    return array;
  }
};

// Runs the call with each instruction set and executor and compares all memory, the bytes around
// the outputs included, with what the definition leaves there.
template <class CallOfOp, class Run, class Reference>
void check_bits(Arrays<CallOfOp>& made, const std::vector<bridge_executor>& executors,
                const Run& run, const Reference& reference) {
  std::vector<Memory> before = made.memory;
  reference(made.call);
  std::vector<Memory> expected = made.memory;
  for (const char* const* isa = bridge_cpu_isas(); *isa != nullptr; ++isa) {
    if (bridge_set_cpu_isa(*isa) != BRIDGE_OK) continue;
    for (const bridge_executor& executor : executors) {
      for (size_t i = 0; i < before.size(); ++i) made.memory[i].assign_from(before[i]);
      const bridge_status status = run(&made.call, &executor);
      bool same = status == BRIDGE_OK;
      for (size_t i = 0; i < expected.size(); ++i) same = same && made.memory[i] == expected[i];
      check(same, std::string(*isa) + ", " + std::to_string(executor.threads) +
                      " threads: " + made.text + (status == BRIDGE_OK ? "" : bridge_last_error()));
    }
  }
  bridge_set_cpu_isa(nullptr);
}

}  // namespace bridge::random

#endif  // BRIDGE_TESTS_RANDOM_ARRAYS_H_
