// Checks gradients of embeddings on the CPU against a plain evaluation: random sizes and dtypes, on
// every instruction set and several threads. Arrays have exactly their extent.
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "embedding_reference.h"

namespace {

using namespace bridge::embedding_reference;  // NOLINT: the parts of a check

int failures = 0;

void check_one(int64_t count, int64_t rows, int64_t cols, int32_t threads, const char* isa) {
  std::vector<std::unique_ptr<char[]>> memory;
  bridge_embedding_gradient call;
  const Ids ids = make_call(
      count, rows, cols,
      [&](int64_t bytes) {
        memory.emplace_back(new char[static_cast<size_t>(bytes)]);
        return memory.back().get();
      },
      &call);
  const bridge_executor executor = bridge_pool(threads);
  const bridge_embedding_gradient here = on_cpu(call, ids);
  const bridge_status status = bridge_embedding_gradient_cpu(&here, &executor);
  if (status == BRIDGE_OK && is_equal(call, expected(call, ids))) return;
  ++failures;
  std::printf("embedding_check: %s, threads %d: %s%s\n", isa, threads, describe(call).c_str(),
              status == BRIDGE_OK ? "other bits" : bridge_last_error());
}

void check_refusals() {
  bridge_embedding_gradient call{};
  call.batches = call.count = call.rows = call.cols = 1;
  call.index_dtype = BRIDGE_INT64;
  call.dtype = BRIDGE_FLOAT32;
  const auto refused = [](const bridge_embedding_gradient* given, const char* words) {
    const bridge_status status = bridge_embedding_gradient_cpu(given, nullptr);
    if (status == BRIDGE_INVALID_ARGUMENT && std::strstr(bridge_last_error(), words) != nullptr)
      return;
    ++failures;
    std::printf("embedding_check: not refused: %s\n", words);
  };
  refused(nullptr, "null");
  call.rows = -1;
  refused(&call, "negative");
  call.rows = 1;
  call.dtype = BRIDGE_INT32;
  refused(&call, "floating");
  call.dtype = BRIDGE_FLOAT32;
  call.index_dtype = BRIDGE_INT16;
  refused(&call, "int64");
  call.index_dtype = BRIDGE_INT32;
  alignas(8) char memory[16] = {};
  call.terms = memory + 1;
  refused(&call, "aligned");
}

}  // namespace

int main(int count, char** arguments) {
  const int64_t rounds = count > 1 ? std::atoll(arguments[1]) : 25;
  random_words.seed(count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 1);
  check_refusals();
  static const int64_t counts[] = {0, 1, 15, 16, 17, 33, 127, 128, 129, 300, 520, 1100};
  static const int64_t rows[] = {0, 1, 2, 3, 7, 30, 200};
  static const int64_t cols[] = {0, 1, 2, 31, 32, 33, 65, 130};
  for (const char* const* isa = bridge_cpu_isas(); *isa != nullptr; ++isa) {
    if (bridge_set_cpu_isa(*isa) != BRIDGE_OK) continue;
    for (int64_t i = 0; i < rounds; ++i)
      check_one(counts[pick(12)], rows[pick(7)], cols[pick(8)], 1 + static_cast<int32_t>(pick(3)),
                *isa);
    check_one(700, 5, 1100, 3, *isa);
    check_one(9000, 3, 33, 2, *isa);
    check_one(2000, 40, 130, 3, *isa);
  }
  std::printf(failures == 0 ? "embedding_check: passed\n" : "embedding_check: %d failures\n",
              failures);
  return failures == 0 ? 0 : 1;
}
