// Calls on arrays of [batch, rows, cols] for the tests of CUDA kernels: operands of every layout,
// each in memory of exactly its size, and the comparison of a call's outputs.
#ifndef BRIDGE_TESTS_SIMT_ARRAY_CASES_H_
#define BRIDGE_TESTS_SIMT_ARRAY_CASES_H_

#include <bridge/bridge.h>

#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "../cpp/array_reference.h"
#include "executor.h"

namespace bridge::simt_test {

inline std::mt19937_64 g_random(1);
inline int g_passed = 0;
inline int g_failed = 0;

inline int64_t below(int64_t limit) {
  return static_cast<int64_t>(g_random() % static_cast<uint64_t>(limit));
}
inline bool one_in(int64_t n) { return below(n) == 0; }

inline size_t bytes_of(int dtype) {
  return dtype <= BRIDGE_BFLOAT16 ? 2 : dtype == BRIDGE_FLOAT32 ? 4 : 8;
}

struct Shape {
  int64_t batch;
  int64_t rows;
  int64_t cols;
};

// An operand and its memory. The elements that the operand does not cover keep what they hold.
struct Operand {
  executor::Memory memory;
  size_t bytes = 0;
  bridge_array array{};
};

constexpr double kSpecial[] = {0.0,
                               -0.0,
                               1e30,
                               -1e30,
                               __builtin_inf(),
                               -3e38,
                               -1e-40,
                               6e-8,
                               65504.0,
                               -__builtin_inf(),
                               -100.0,
                               __builtin_nan("")};

inline void fill(const bridge_array& array, size_t bytes, bool special) {
  std::normal_distribution<double> normal(0.0, 2.0);
  const int64_t count = static_cast<int64_t>(bytes / bytes_of(array.dtype));
  for (int64_t i = 0; i < count; ++i) {
    double value = normal(g_random);
    if (special && one_in(50)) value = kSpecial[below(sizeof kSpecial / sizeof kSpecial[0])];
    reference::store(array.data, array.dtype, i, value);
  }
}

enum class Layout { dense, shifted, apart, gaps, vector_gaps, reversed, repeated, count };

// `operand` with strides and alignment of the given kind; the outputs take no repeated rows.
inline Operand make_operand(const Shape& shape, int dtype, bool row, Layout layout, bool special) {
  Operand operand;
  bridge_array& array = operand.array;
  array.dtype = dtype;
  const int64_t vector = static_cast<int64_t>(16 / bytes_of(dtype));
  int64_t row_stride = shape.cols;
  int64_t offset = 0;
  if (layout == Layout::shifted) offset = 1 % vector;
  if (layout == Layout::apart) offset = below(vector);
  if (layout == Layout::gaps) row_stride += 1 + below(3);
  if (layout == Layout::vector_gaps) row_stride = (row_stride / vector + 2) * vector;
  if (layout == Layout::repeated) row_stride = 0;
  const int64_t rows = row ? 1 : shape.rows;
  if (row) row_stride = 0;
  int64_t batch_stride = row ? shape.cols : row_stride * rows;
  if (layout == Layout::gaps) batch_stride += 3;
  if (layout == Layout::repeated) batch_stride = row && !one_in(2) ? shape.cols : 0;
  int64_t extent = 0;
  if (shape.batch > 0 && rows > 0) {
    extent = (shape.batch - 1) * batch_stride + (rows - 1) * row_stride + shape.cols;
  }
  operand.bytes = static_cast<size_t>(offset + extent) * bytes_of(dtype);
  operand.memory = executor::allocate(operand.bytes);
  array.data = operand.memory.get();
  fill(array, operand.bytes, special);
  if (layout == Layout::reversed && !row && rows > 0) {
    offset += (rows - 1) * row_stride;
    row_stride = -row_stride;
  }
  array.data = operand.memory.get() + static_cast<size_t>(offset) * bytes_of(dtype);
  array.row_stride = row_stride;
  array.batch_stride = batch_stride;
  return operand;
}

template <class Call>
struct Case {
  Call call{};
  std::vector<Operand> operands;
  Operand* in_place = nullptr;
  std::string name;

  bridge_array add(const Shape& shape, int dtype, bool row, Layout layout, bool special) {
    operands.push_back(make_operand(shape, dtype, row, layout, special));
    return operands.back().array;
  }
};

// What a call's outputs hold after `run`, starting from the same memory each time.
struct Outputs {
  std::vector<char> full;
  std::vector<char> row;
};

template <class Call, class Run>
Outputs outputs_of(Case<Call>& test, Operand& full, Operand& row, Run&& run) {
  std::vector<std::vector<char>> before;
  auto save = [&](const Operand& operand) {
    before.emplace_back(operand.memory.get(), operand.memory.get() + operand.bytes);
  };
  save(full);
  save(row);
  run(test.call);
  Outputs result{{full.memory.get(), full.memory.get() + full.bytes},
                 {row.memory.get(), row.memory.get() + row.bytes}};
  std::copy(before[0].begin(), before[0].end(), full.memory.get());
  std::copy(before[1].begin(), before[1].end(), row.memory.get());
  return result;
}

inline void expect(bool holds, const std::string& name, const char* what) {
  if (holds) {
    ++g_passed;
    return;
  }
  ++g_failed;
  if (g_failed <= 20) std::printf("FAILED %s: %s\n", name.c_str(), what);
}

// An op: its definition, and its functions on the device and on the CPU (null where that is not
// linked).
template <class Call>
struct Functions {
  void (*reference)(const Call&);
  size_t (*workspace)(const Call*);
  bridge_status (*cuda)(const Call*, void*, size_t, void*);
  bridge_status (*cpu)(const Call*, const bridge_executor*);
};

template <class Call>
void run_on_device(const Functions<Call>& op, const Call& call, const std::string& name) {
  const size_t bytes = op.workspace(&call);
  executor::Memory workspace = executor::allocate(bytes);
  std::memset(workspace.get(), 0xff, bytes);
  const Call placed = executor::placed(call);
  void* const memory = bytes > 0 ? executor::placed(workspace) : nullptr;
  const bridge_status status = op.cuda(&placed, memory, bytes, nullptr);
  if (status != BRIDGE_OK) expect(false, name, bridge_cuda_last_error());
  const std::string failure = executor::finish();
  if (!failure.empty()) expect(false, name, failure.c_str());
}

template <class Call>
void check(Case<Call>& test, const Functions<Call>& op, Operand& full, Operand& row) {
  const Outputs expected =
      outputs_of(test, full, row, [&](const Call& call) { op.reference(call); });
  executor::next_order();
  const Outputs found =
      outputs_of(test, full, row, [&](const Call& call) { run_on_device(op, call, test.name); });
  expect(found.full == expected.full, test.name, "output.full differs from the reference");
  expect(found.row == expected.row, test.name, "output.row differs from the reference");
  if (op.cpu == nullptr) return;
  const Outputs cpu = outputs_of(test, full, row, [&](const Call& call) {
    if (op.cpu(&call, nullptr) != BRIDGE_OK) expect(false, test.name, "the CPU kernel fails");
  });
  expect(found.full == cpu.full, test.name, "output.full differs from the CPU kernel");
  expect(found.row == cpu.row, test.name, "output.row differs from the CPU kernel");
}

// The borders of lanes (16 rows), chunks (128), tree nodes (64 chunks), vectors and blocks.
constexpr Shape kShapes[] = {{1, 1, 1},     {1, 1, 7},     {1, 1, 8},    {1, 1, 4099}, {1, 3, 1},
                             {1, 127, 1},   {1, 128, 1},   {1, 129, 1},  {1, 300, 1},  {1, 16, 8},
                             {1, 17, 9},    {1, 15, 33},   {1, 127, 5},  {1, 128, 8},  {1, 129, 16},
                             {1, 257, 3},   {4, 130, 12},  {3, 1, 5},    {3, 5, 1},    {5, 40, 24},
                             {1, 400, 264}, {1, 20, 2100}, {2, 3, 1000}, {9, 2, 8},    {17, 1, 16},
                             {40, 130, 1},  {1, 700, 40},  {1, 1100, 8}, {1, 33, 100}, {1, 2, 2056},
                             {1, 40, 257},  {1, 30, 1001}};

}  // namespace bridge::simt_test

#endif  // BRIDGE_TESTS_SIMT_ARRAY_CASES_H_
