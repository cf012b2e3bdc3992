// The CUDA kernels of bias_dropout_add, through their C function, on the emulator or a GPU: every
// result must have the bits of the definition (tests/cpp/bias_dropout_add_reference.h) and, where
// that is linked, of the CPU kernel, whatever the order in which a block's threads run. Buffers
// have exactly the size of their operand, so that AddressSanitizer or compute-sanitizer sees any
// access beside it.
//
//   bias_dropout_add_simt [how many random calls [only]]     only: leave the systematic ones out
#include <bridge/bridge.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "../cpp/bias_dropout_add_reference.h"
#include "array_cases.h"
#include "ops/bias_dropout_add/bias_dropout_add_cuda.h"

namespace {

using namespace bridge::simt_test;
namespace executor = bridge::executor;

constexpr Functions<bridge_bias_dropout_add> kFunctions = {
    bridge::reference::run, bridge_bias_dropout_add_cuda_workspace, bridge_bias_dropout_add_cuda,
#ifdef BRIDGE_SIMT_WITH_CPU
    bridge_bias_dropout_add_cpu
#else
    nullptr
#endif
};

struct Case : bridge::simt_test::Case<bridge_bias_dropout_add> {
  std::vector<executor::Memory> integers;

  template <class Value>
  bridge_integers add_integers(const Value& value) {
    const int64_t count = one_in(3) ? 1 : std::max<int64_t>(call.batch, 1);
    integers.push_back(executor::allocate(static_cast<size_t>(count) * sizeof(int64_t)));
    auto* data = reinterpret_cast<int64_t*>(integers.back().get());
    for (int64_t i = 0; i < count; ++i) data[i] = static_cast<int64_t>(value());
    return {data, count == 1 ? 0 : 1};
  }
};

enum class With { nothing, residual, sums, only_sums, count };

constexpr int64_t kThresholds[] = {0,         1,          429496730,       int64_t{1} << 31,
                                   429496730, 0xFFFFFFFF, int64_t{1} << 32};

uint64_t any_start() {
  static const uint64_t places[] = {0, 0, 0, uint64_t{1} << 32, uint64_t{1} << 34, ~uint64_t{0}};
  const uint64_t place = places[below(6)];
  return place - (place == 0 ? 0 : g_random() % 5000) + (one_in(2) ? 0 : g_random() % 40);
}

Case make_case(const Shape& shape, With with, int64_t threshold, int dtype, bool hot,
               Layout layout) {
  Case test;
  test.operands.reserve(8);
  bridge_bias_dropout_add& call = test.call;
  const bool special = one_in(4), mixed_layouts = one_in(4);
  const int other = hot ? dtype : static_cast<int>(below(4));
  auto pick_dtype = [&] { return one_in(2) ? dtype : other; };
  auto pick_layout = [&] {
    return mixed_layouts ? static_cast<Layout>(below(static_cast<int64_t>(Layout::count))) : layout;
  };
  auto output_layout = [&] {
    const Layout picked = pick_layout();
    return picked == Layout::repeated ? Layout::dense : picked;
  };
  call.batch = shape.batch;
  call.rows = shape.rows;
  call.cols = shape.cols;
  call.index_cols = shape.cols + (one_in(2) ? 0 : one_in(2) ? 8 * below(5) : below(30));
  call.threshold = threshold;
  call.factor = one_in(2) ? 1.0 / 0.9 : -3.5e-3;
  call.seed = test.add_integers([] { return g_random(); });
  if (!one_in(4)) call.offset = test.add_integers([] { return g_random(); });
  if (one_in(2)) call.start = test.add_integers(any_start);
  call.input.full = test.add(shape, pick_dtype(), false, pick_layout(), special);
  if (!one_in(3)) call.input.row = test.add(shape, pick_dtype(), true, pick_layout(), special);
  if (with == With::residual) {
    call.residual = test.add(shape, pick_dtype(), false, pick_layout(), special);
  }
  if (with != With::only_sums) {
    const Operand* alias = nullptr;
    if (one_in(4)) alias = &test.operands[one_in(2) ? 0 : test.operands.size() - 1];
    if (alias != nullptr && alias->array.row_stride == 0) alias = nullptr;
    if (alias != nullptr && shape.batch > 1 && alias->array.batch_stride == 0) alias = nullptr;
    if (alias != nullptr)
      test.in_place = &test.operands[static_cast<size_t>(alias - test.operands.data())];
    const Layout picked = output_layout();
    call.output.full =
        alias != nullptr ? alias->array : test.add(shape, pick_dtype(), false, picked, false);
  }
  if (with == With::sums || with == With::only_sums) {
    call.output.row = test.add(shape, pick_dtype(), true, output_layout(), false);
  }
  char name[200];
  std::snprintf(
      name, sizeof name,
      "[%d, %d, %d] of %d dtype %d/%d threshold %lld with %d layout %d start %llx%s%s",
      static_cast<int>(shape.batch), static_cast<int>(shape.rows), static_cast<int>(shape.cols),
      static_cast<int>(call.index_cols), dtype, other, static_cast<long long>(threshold),
      static_cast<int>(with), mixed_layouts ? -1 : static_cast<int>(layout),
      call.start.data == nullptr ? 0ull : static_cast<unsigned long long>(*call.start.data),
      test.in_place != nullptr ? " in place" : "", hot ? " hot" : "");
  test.name = name;
  return test;
}

void run_case(const Shape& shape, With with, int64_t threshold, int dtype, bool hot,
              Layout layout) {
  Case test = make_case(shape, with, threshold, dtype, hot, layout);
  Operand none;
  none.memory = executor::allocate(0);
  const bool sums = test.call.output.row.data != nullptr;
  Operand& row = sums ? test.operands.back() : none;
  Operand& full = with == With::only_sums    ? none
                  : test.in_place != nullptr ? *test.in_place
                                             : test.operands[test.operands.size() - (sums ? 2 : 1)];
  check(test, kFunctions, full, row);
}

void run_grid() {
  int turn = 0;
  for (const Shape& shape : kShapes) {
    ++turn;  // else each kind and dtype would keep to one threshold
    for (int with = 0; with < static_cast<int>(With::count); ++with) {
      for (int dtype = 0; dtype < 4; ++dtype) {
        const auto layout = static_cast<Layout>(turn % static_cast<int>(Layout::count));
        run_case(shape, static_cast<With>(with), kThresholds[turn % 5], dtype, true, layout);
        ++turn;
      }
    }
  }
}

void run_random(int cases) {
  for (int i = 0; i < cases; ++i) {
    const Shape shape = one_in(2) ? Shape{1 + below(3), 1 + below(150), 1 + below(70)}
                                  : kShapes[below(sizeof kShapes / sizeof kShapes[0])];
    run_case(shape, static_cast<With>(below(static_cast<int64_t>(With::count))),
             kThresholds[below(sizeof kThresholds / sizeof kThresholds[0])],
             static_cast<int>(below(4)), one_in(2),
             static_cast<Layout>(below(static_cast<int64_t>(Layout::count))));
  }
}

void run_empty() {
  for (const Shape& shape : {Shape{0, 3, 4}, {1, 0, 5}, {3, 0, 2}, {1, 5, 0}, {20, 0, 40}}) {
    for (int with = 0; with < static_cast<int>(With::count); ++with) {
      for (int dtype = 0; dtype < 4; ++dtype) {
        run_case(shape, static_cast<With>(with), kThresholds[2], dtype, dtype % 2 == 0,
                 Layout::dense);
      }
    }
  }
}

// Two and three levels of the tree over chunks.
void run_tall() {
  run_case({1, 8193, 3}, With::sums, kThresholds[2], BRIDGE_BFLOAT16, true, Layout::dense);
  run_case({2, 9000, 2}, With::only_sums, kThresholds[2], BRIDGE_FLOAT64, true, Layout::dense);
  run_case({1, 64 * 64 * 128 + 1, 1}, With::only_sums, 0, BRIDGE_FLOAT32, true, Layout::dense);
}

// What a captured graph relies on: the same call draws anew when the seed's memory changes.
void run_new_seed() {
  Case test =
      make_case({1, 4, 64}, With::nothing, int64_t{1} << 31, BRIDGE_FLOAT32, true, Layout::dense);
  int64_t* const seed = const_cast<int64_t*>(test.call.seed.data);
  Operand none;
  none.memory = executor::allocate(0);
  Operand& full = test.in_place != nullptr ? *test.in_place : test.operands.back();
  auto drawn = [&](int64_t value) {
    *seed = value;
    check(test, kFunctions, full, none);
    return outputs_of(test, full, none,
                      [&](const bridge_bias_dropout_add& call) {
                        run_on_device(kFunctions, call, test.name);
                      })
        .full;
  };
  const auto first = drawn(1), second = drawn(2);
  expect(first != second && first == drawn(1), "seed", "is read by every launch");
}

void run_refusals() {
  Case test = make_case({1, 300, 4}, With::sums, 1, BRIDGE_FLOAT32, true, Layout::dense);
  const size_t needed = bridge_bias_dropout_add_cuda_workspace(&test.call);
  expect(needed == 3 * 4 * sizeof(float), "workspace", "three chunks of four columns");
  std::vector<double> workspace(needed);
  auto refused = [&](void* memory, size_t bytes) {
    return bridge_bias_dropout_add_cuda(&test.call, memory, bytes, nullptr) ==
           BRIDGE_INVALID_ARGUMENT;
  };
  expect(refused(workspace.data(), needed - 1), "workspace", "too small a workspace is refused");
  expect(refused(nullptr, needed), "workspace", "no workspace is refused");
  expect(bridge_bias_dropout_add_cuda(nullptr, nullptr, 0, nullptr) == BRIDGE_INVALID_ARGUMENT,
         "call", "NULL is refused");
#ifndef BRIDGE_EXECUTOR_GPU
  expect(bridge::bias_dropout_add::load_kernels() == nullptr, "load_kernels", "every kernel loads");
#endif
  test.call.threshold = -1;
  expect(refused(workspace.data(), needed) &&
             std::strstr(bridge_cuda_last_error(), "threshold") != nullptr,
         "threshold", "a threshold below 0 is refused by name");
}

}  // namespace

int main(int argc, char** argv) {
  const int random_calls = argc > 1 ? std::atoi(argv[1]) : 400;
  if (argc <= 2) {
    run_grid();
    run_empty();
    run_refusals();
    run_tall();
    run_new_seed();
  }
  run_random(random_calls);
  std::printf("%d passed, %d failed\n", g_passed, g_failed);
  return g_failed == 0 ? 0 : 1;
}
