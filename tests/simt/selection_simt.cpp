// Checks the CUDA kernels that choose columns, through their C function, on the emulator or a GPU.
// Every result must be that of a sort of the row, and of the CPU, for any order of a block's
// threads. Arrays have exactly their extent.
#include <cstdio>
#include <cstdlib>

#include "../cpp/selection_reference.h"
#include "executor.h"
#ifndef BRIDGE_EXECUTOR_GPU
#include "selection/selection_cuda.h"
#endif

namespace {

using namespace bridge::selection_reference;  // NOLINT: the parts of a check
namespace executor = bridge::executor;

int passed = 0, failed = 0;

void check(bool is_right, const std::string& what) {
  ++(is_right ? passed : failed);
  if (!is_right) std::printf("FAILED: %s\n", what.c_str());
}

void compare(int64_t rows, int64_t cols, bool is_draw) {
  std::vector<executor::Memory> memory;
  bridge_selection call;
  make_call(
      rows, cols, is_draw,
      [&](int64_t bytes) {
        memory.push_back(executor::allocate(static_cast<size_t>(bytes)));
        return memory.back().get();
      },
      &call);
  executor::next_order();
  const bridge_selection placed = executor::placed(call);
  const bridge_status status = bridge_selection_cuda(&placed, nullptr);
  const std::string failure = executor::finish();
  check(failure.empty(), failure);
  check(status == BRIDGE_OK && is_right(call),
        describe(call) + (status == BRIDGE_OK ? "" : bridge_cuda_last_error()));
#ifdef BRIDGE_SIMT_WITH_CPU
  check(bridge_selection_cpu(&call, nullptr) == BRIDGE_OK && is_right(call),
        "on the CPU: " + describe(call));
#endif
}

void run_refusals() {
  const auto refused = [](const bridge_selection* given, const char* words) {
    check(bridge_selection_cuda(given, nullptr) == BRIDGE_INVALID_ARGUMENT &&
              std::strstr(bridge_cuda_last_error(), words) != nullptr,
          words);
  };
  refused(nullptr, "NULL");
  for_refusals(refused);
}

}  // namespace

int main(int argc, char** argv) {
  const int calls = argc > 1 ? std::atoi(argv[1]) : 40;
  if (argc > 2) random_words.seed(std::strtoull(argv[2], nullptr, 10));
  static const int64_t rows[] = {0, 1, 2, 5};
  static const int64_t cols[] = {1, 2, 3, 31, 64, 65, 128, 300, 1025, 1200};
  for (int i = 0; i < calls; ++i) compare(rows[pick(4)], cols[pick(10)], i % 2 == 0);
  run_refusals();
#ifndef BRIDGE_EXECUTOR_GPU
  check(bridge::selection::load_kernels() == nullptr, "every kernel loads");
#endif
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
