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
#include <vector>

#include "../cpp/bias_gelu_reference.h"
#include "array_cases.h"
#include "ops/bias_gelu/bias_gelu_cuda.h"

namespace {

using namespace bridge::simt_test;
namespace executor = bridge::executor;

using Case = bridge::simt_test::Case<bridge_bias_gelu>;

constexpr Functions<bridge_bias_gelu> kFunctions = {
    bridge::reference::run, bridge_bias_gelu_cuda_workspace, bridge_bias_gelu_cuda,
#ifdef BRIDGE_SIMT_WITH_CPU
    bridge_bias_gelu_cpu
#else
    nullptr
#endif
};

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
  if (!one_in(3)) {
    // A 16-bit bias of the other format asks for float32's arithmetic, and with it another kernel.
    const bool swap = hot && dtype <= BRIDGE_BFLOAT16 && one_in(3);
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
  check(test, kFunctions, *full, *row);
}

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
  const int random_calls = argc > 1 ? std::atoi(argv[1]) : 400;
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
