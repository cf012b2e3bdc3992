// Checks the CUDA kernels of gradients of embeddings, through their C function, on the emulator or
// a GPU. Every result must have the bits of a plain evaluation and of the CPU, for any order of a
// block's threads. Arrays have exactly their extent.
#include <cstdio>
#include <cstdlib>

#include "../cpp/embedding_reference.h"
#include "executor.h"
#ifndef BRIDGE_EXECUTOR_GPU
#include "embedding/embedding_cuda.h"
#endif

namespace {

using namespace bridge::embedding_reference;  // NOLINT: the parts of a check
namespace executor = bridge::executor;

int passed = 0, failed = 0;

void check(bool is_right, const std::string& what) {
  ++(is_right ? passed : failed);
  if (!is_right) std::printf("FAILED: %s\n", what.c_str());
}

// The size that bridge.h states.
size_t workspace_bytes(const bridge_embedding_gradient& call) {
  const int64_t starts = (call.batches * (call.rows + 1) * 8 + 15) / 16 * 16;
  const int64_t numbers = call.batches * 2 * ((call.count + 127) / 128) * call.cols;
  return static_cast<size_t>(starts + numbers * (call.dtype == BRIDGE_FLOAT64 ? 8 : 4));
}

void compare(int64_t count, int64_t rows, int64_t cols) {
  std::vector<executor::Memory> memory;
  bridge_embedding_gradient call;
  const Ids ids = make_call(
      count, rows, cols,
      [&](int64_t bytes) {
        memory.push_back(executor::allocate(static_cast<size_t>(bytes)));
        return memory.back().get();
      },
      &call);
  const size_t bytes = workspace_bytes(call);
  const executor::Memory workspace = executor::allocate(bytes);
  std::memset(workspace.get(), 0xff, bytes);
  executor::next_order();
  const bridge_embedding_gradient placed = executor::placed(call);
  const bridge_status status =
      bridge_embedding_gradient_cuda(&placed, executor::placed(workspace), bytes, nullptr);
  const std::string failure = executor::finish();
  check(failure.empty(), failure);
  const std::vector<char> wanted = expected(call, ids);
  check(status == BRIDGE_OK && is_equal(call, wanted),
        describe(call) + (status == BRIDGE_OK ? "" : bridge_cuda_last_error()));
#ifdef BRIDGE_SIMT_WITH_CPU
  const bridge_embedding_gradient here = on_cpu(call, ids);
  check(bridge_embedding_gradient_cpu(&here, nullptr) == BRIDGE_OK && is_equal(call, wanted),
        "on the CPU: " + describe(call));
#endif
}

void run_refusals() {
  bridge_embedding_gradient call{};
  call.batches = call.count = call.rows = call.cols = 1;
  call.index_dtype = BRIDGE_INT64;
  call.dtype = BRIDGE_FLOAT32;
  const auto refused = [](const bridge_embedding_gradient* given, const char* words) {
    check(bridge_embedding_gradient_cuda(given, nullptr, 0, nullptr) == BRIDGE_INVALID_ARGUMENT &&
              std::strstr(bridge_cuda_last_error(), words) != nullptr,
          words);
  };
  refused(nullptr, "NULL");
  refused(&call, "workspace");
  call.count = int64_t{1} << 40;
  refused(&call, "positions");
  call.count = -1;
  refused(&call, "negative");
  call.count = 1;
  call.index_dtype = BRIDGE_UINT8;
  refused(&call, "int64");
  call.dtype = BRIDGE_BOOL;
  refused(&call, "floating");
}

}  // namespace

int main(int argc, char** argv) {
  const int calls = argc > 1 ? std::atoi(argv[1]) : 60;
  if (argc > 2) random_words.seed(std::strtoull(argv[2], nullptr, 10));
  static const int64_t counts[] = {0,   1,   16,  17,  127, 128,  129,
                                   255, 257, 400, 520, 900, 1200, 2600};
  static const int64_t rows[] = {0, 1, 2, 3, 7, 40};
  static const int64_t cols[] = {0, 1, 2, 33, 127, 128, 129, 140};
  for (int i = 0; i < calls; ++i) compare(counts[pick(14)], rows[pick(6)], cols[pick(8)]);
  compare(20000, 2, 3);
  run_refusals();
#ifndef BRIDGE_EXECUTOR_GPU
  check(bridge::embedding::load_kernels() == nullptr, "every kernel loads");
#endif
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
