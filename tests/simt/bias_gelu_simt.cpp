// The CUDA kernels of bias_gelu, through their C function, on the emulator or a GPU: every result
// must have the bits of the brute-force reference (and of the CPU kernel, where that is linked),
// whatever the order in which a block's threads run. Buffers have exactly the size of their
// operand, so that AddressSanitizer or compute-sanitizer sees any access beside it.
//
//   bias_gelu_simt [how many random calls [only]]     only: leave the systematic ones out
#include <bridge/bridge.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "bias_gelu_reference.h"
#include "executor.h"
#include "ops/bias_gelu_cuda.h"

namespace {

namespace executor = bridge::executor;

std::mt19937_64 g_random(1);
int g_passed = 0;
int g_failed = 0;

int64_t below(int64_t limit) {
  return static_cast<int64_t>(g_random() % static_cast<uint64_t>(limit));
}
bool one_in(int64_t n) { return below(n) == 0; }

size_t bytes_of(int dtype) {
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

void fill(const bridge_array& array, size_t bytes, bool special) {
  std::normal_distribution<double> normal(0.0, 2.0);
  const int64_t count = static_cast<int64_t>(bytes / bytes_of(array.dtype));
  for (int64_t i = 0; i < count; ++i) {
    double value = normal(g_random);
    if (special && one_in(50)) value = kSpecial[below(sizeof kSpecial / sizeof kSpecial[0])];
    bridge::reference::store(array, i, value);
  }
}

enum class Layout { dense, shifted, apart, gaps, vector_gaps, reversed, repeated, count };

// `operand` with strides and alignment of the given kind; the outputs take no repeated rows.
Operand make_operand(const Shape& shape, int dtype, bool row, Layout layout, bool special) {
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

struct Case {
  bridge_bias_gelu call{};
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

template <class Run>
Outputs outputs_of(Case& test, Operand& full, Operand& row, Run&& run) {
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

void expect(bool holds, const std::string& name, const char* what) {
  if (holds) {
    ++g_passed;
    return;
  }
  ++g_failed;
  if (g_failed <= 20) std::printf("FAILED %s: %s\n", name.c_str(), what);
}

void run_on_emulator(const bridge_bias_gelu& call, const std::string& name) {
  const size_t bytes = bridge_bias_gelu_cuda_workspace(&call);
  executor::Memory workspace = executor::allocate(bytes);
  std::memset(workspace.get(), 0xff, bytes);
  const bridge_status status =
      bridge_bias_gelu_cuda(&call, bytes > 0 ? workspace.get() : nullptr, bytes, nullptr);
  if (status != BRIDGE_OK) expect(false, name, bridge_cuda_last_error());
  const std::string failure = executor::finish();
  if (!failure.empty()) expect(false, name, failure.c_str());
}

void check(Case& test, Operand& full, Operand& row) {
  const Outputs expected = outputs_of(
      test, full, row, [](const bridge_bias_gelu& call) { bridge::reference::bias_gelu(call); });
  executor::next_order();
  const Outputs found = outputs_of(
      test, full, row, [&](const bridge_bias_gelu& call) { run_on_emulator(call, test.name); });
  expect(found.full == expected.full, test.name, "output.full differs from the reference");
  expect(found.row == expected.row, test.name, "output.row differs from the reference");
#ifdef BRIDGE_SIMT_WITH_CPU
  const Outputs cpu = outputs_of(test, full, row, [&](const bridge_bias_gelu& call) {
    if (bridge_bias_gelu_cpu(&call, nullptr) != BRIDGE_OK) {
      expect(false, test.name, bridge_last_error());
    }
  });
  expect(found.full == cpu.full, test.name, "output.full differs from the CPU kernel");
  expect(found.row == cpu.row, test.name, "output.row differs from the CPU kernel");
#endif
}

// What makes a call one of those that have a kernel of their own, or none of them.
struct Kind {
  int order;
  int factors;
  bool full;
  bool row;
};
constexpr Kind kHot[] = {{0, 0, true, false}, {1, 1, true, false}, {1, 1, true, true},
                         {1, 1, false, true}, {2, 2, true, false}, {2, 2, true, true}};

Case make_case(const Shape& shape, const Kind& kind, int form, int dtype, bool hot, Layout layout) {
  Case test;
  test.operands.reserve(2 * BRIDGE_MAX_FACTORS + 4);
  bridge_bias_gelu& call = test.call;
  const bool special = one_in(4);
  const int other = hot ? dtype : static_cast<int>(below(4));
  const bool mixed_layouts = one_in(4);
  auto pick_dtype = [&] { return one_in(2) ? dtype : other; };
  auto pick_layout = [&] {
    return mixed_layouts ? static_cast<Layout>(below(static_cast<int64_t>(Layout::count))) : layout;
  };
  auto output_layout = [&] {
    const Layout picked = pick_layout();
    return picked == Layout::repeated ? Layout::dense : picked;
  };
  call.form = form;
  call.order = kind.order;
  call.batch = shape.batch;
  call.rows = shape.rows;
  call.cols = shape.cols;
  call.input.full = test.add(shape, pick_dtype(), false, pick_layout(), special);
  // A 16-bit bias of the other format keeps the arithmetic, and with it the kernel.
  const bool swap = hot && dtype <= BRIDGE_BFLOAT16 && one_in(3);
  if (!one_in(3)) {
    const int bias_dtype = swap ? 1 - dtype : pick_dtype();
    call.input.row = test.add(shape, bias_dtype, true, pick_layout(), special);
  }
  call.factors = kind.factors;
  for (int i = 0; i < kind.factors; ++i) {
    const bool only_row = !hot && one_in(3);
    if (!only_row) {
      call.factor[i].full = test.add(shape, pick_dtype(), false, pick_layout(), special);
    }
    if (only_row || (!hot && one_in(2))) {
      call.factor[i].row = test.add(shape, pick_dtype(), true, pick_layout(), special);
    }
  }
  Operand* alias = nullptr;
  if (kind.full && one_in(4)) {
    alias = &test.operands[one_in(2) ? 0
                                     : static_cast<size_t>(
                                           below(static_cast<int64_t>(test.operands.size())))];
    if (alias->array.row_stride == 0) alias = nullptr;
    if (alias != nullptr && shape.batch > 1 && alias->array.batch_stride == 0) alias = nullptr;
  }
  const Layout picked = output_layout();
  if (kind.full) {
    call.output.full =
        alias != nullptr ? alias->array : test.add(shape, pick_dtype(), false, picked, false);
  }
  test.in_place = alias;
  if (kind.row) call.output.row = test.add(shape, pick_dtype(), true, output_layout(), false);
  char name[200];
  std::snprintf(
      name, sizeof name, "[%d, %d, %d] dtype %d/%d form %d order %d factors %d layout %d%s%s",
      static_cast<int>(shape.batch), static_cast<int>(shape.rows), static_cast<int>(shape.cols),
      dtype, other, form, kind.order, kind.factors, mixed_layouts ? -1 : static_cast<int>(layout),
      alias != nullptr ? " in place" : "", hot ? " hot" : "");
  test.name = name;
  return test;
}

void run_case(const Shape& shape, const Kind& kind, int form, int dtype, bool hot, Layout layout) {
  Case test = make_case(shape, kind, form, dtype, hot, layout);
  Operand none;
  none.memory = executor::allocate(0);
  Operand* full = &none;
  Operand* row = &none;
  if (kind.row) row = &test.operands.back();
  if (kind.full) {
    full = test.in_place != nullptr ? test.in_place
                                    : &test.operands[test.operands.size() - (kind.row ? 2 : 1)];
  }
  check(test, *full, *row);
}

// The borders of lanes (16 rows), chunks (128), tree nodes (64 chunks), vectors and blocks.
constexpr Shape kShapes[] = {{1, 1, 1},     {1, 1, 7},     {1, 1, 8},    {1, 1, 4099}, {1, 3, 1},
                             {1, 127, 1},   {1, 128, 1},   {1, 129, 1},  {1, 300, 1},  {1, 16, 8},
                             {1, 17, 9},    {1, 15, 33},   {1, 127, 5},  {1, 128, 8},  {1, 129, 16},
                             {1, 257, 3},   {4, 130, 12},  {3, 1, 5},    {3, 5, 1},    {5, 40, 24},
                             {1, 400, 264}, {1, 20, 2100}, {2, 3, 1000}, {9, 2, 8},    {17, 1, 16},
                             {40, 130, 1},  {1, 700, 40},  {1, 1100, 8}, {1, 33, 100}, {1, 2, 2056},
                             {1, 40, 257},  {1, 30, 1001}};

void run_grid() {
  int turn = 0;
  for (const Shape& shape : kShapes) {
    ++turn;  // else each kind and dtype would keep to one form
    for (const Kind& kind : kHot) {
      for (int dtype = 0; dtype < 4; ++dtype) {
        const auto layout = static_cast<Layout>(turn % static_cast<int>(Layout::count));
        run_case(shape, kind, turn % 3, dtype, true, layout);
        ++turn;
      }
    }
  }
}

void run_random(int cases) {
  for (int i = 0; i < cases; ++i) {
    const Shape shape = one_in(2) ? Shape{1 + below(3), 1 + below(150), 1 + below(70)}
                                  : kShapes[below(sizeof kShapes / sizeof kShapes[0])];
    const bool hot = one_in(2);
    Kind kind = kHot[below(sizeof kHot / sizeof kHot[0])];
    if (!hot) {
      kind = {static_cast<int>(below(BRIDGE_MAX_GELU_ORDER + 1)),
              static_cast<int>(below(one_in(3) ? BRIDGE_MAX_FACTORS + 1 : 3)), !one_in(3), true};
      kind.row = !kind.full || one_in(2);
    }
    const auto layout = static_cast<Layout>(below(static_cast<int64_t>(Layout::count)));
    run_case(shape, kind, static_cast<int>(below(3)), static_cast<int>(below(4)), hot, layout);
  }
}

void run_empty() {
  for (const Shape& shape : {Shape{0, 3, 4}, {1, 0, 5}, {3, 0, 2}, {1, 5, 0}, {20, 0, 40}}) {
    for (const Kind& kind : kHot) {
      for (int dtype = 0; dtype < 4; ++dtype) {
        run_case(shape, kind, 0, dtype, dtype % 2 == 0, Layout::dense);
      }
    }
  }
}

// Two and three levels of the tree over chunks.
void run_tall() {
  run_case({1, 8193, 1}, kHot[2], BRIDGE_GELU_TANH, BRIDGE_BFLOAT16, true, Layout::dense);
  // Three times: the emulator takes another order each time.
  for (int i = 0; i < 3; ++i) {
    run_case({1, 8193, 3}, kHot[3], BRIDGE_GELU_SIGMOID, BRIDGE_FLOAT16, true, Layout::dense);
  }
  run_case({2, 9000, 2}, kHot[2], BRIDGE_GELU_ERF, BRIDGE_FLOAT64, true, Layout::dense);
  run_case({1, 64 * 64 * 128 + 1, 1}, kHot[3], BRIDGE_GELU_SIGMOID, BRIDGE_FLOAT32, true,
           Layout::dense);
}

void run_refusals() {
  Case test = make_case({1, 300, 4}, kHot[2], 0, BRIDGE_FLOAT32, true, Layout::dense);
  const size_t needed = bridge_bias_gelu_cuda_workspace(&test.call);
  expect(needed == 3 * 4 * sizeof(float), "workspace", "three chunks of four columns");
  std::vector<double> workspace(needed);
  expect(bridge_bias_gelu_cuda(&test.call, workspace.data(), needed - 1, nullptr) ==
             BRIDGE_INVALID_ARGUMENT,
         "workspace", "too small a workspace is refused");
  expect(bridge_bias_gelu_cuda(&test.call, nullptr, needed, nullptr) == BRIDGE_INVALID_ARGUMENT,
         "workspace", "no workspace is refused");
  expect(bridge_bias_gelu_cuda(nullptr, nullptr, 0, nullptr) == BRIDGE_INVALID_ARGUMENT, "call",
         "NULL is refused");
#ifndef BRIDGE_EXECUTOR_GPU
  expect(bridge::bias_gelu::load_kernels() == nullptr, "load_kernels", "every kernel loads");
#endif
  test.call.order = BRIDGE_MAX_GELU_ORDER + 1;
  expect(bridge_bias_gelu_cuda(&test.call, workspace.data(), needed, nullptr) ==
                 BRIDGE_INVALID_ARGUMENT &&
             std::strstr(bridge_cuda_last_error(), "order") != nullptr,
         "order", "an order beyond the highest is refused by name");
}

}  // namespace

int main(int argc, char** argv) {
  const int random_calls = argc > 1 ? std::atoi(argv[1]) : 1200;
  if (argc <= 2) {
    run_grid();
    run_empty();
    run_refusals();
    run_tall();
  }
  run_random(random_calls);
  std::printf("%d passed, %d failed\n", g_passed, g_failed);
  return g_failed == 0 ? 0 : 1;
}
