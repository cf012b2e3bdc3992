// Checks matrix products against a plain evaluation in the order that the numerics define: random
// sizes, strides, batches and dtypes, on every instruction set and several threads.
#include <bridge/bridge.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "product_reference.h"

namespace {

using product_test::pick;

int failures = 0;

void check_one(int64_t m, int64_t n, int64_t k, const bridge_executor* executor, const char* isa) {
  const product_test::Case given = product_test::random_case(m, n, k);
  const bridge_status status = bridge_product_cpu(&given.call, executor);
  if (status == BRIDGE_OK && given.c.memory == given.expected.memory) return;
  ++failures;
  std::printf("product_check: %s: %s, threads %d: %s\n", isa, given.words().c_str(),
              executor->threads, status == BRIDGE_OK ? "other bits" : bridge_last_error());
}

void check_refusals() {
  bridge_product call{};
  call.m = call.n = call.k = 1;
  const auto refused = [](const bridge_product* given, const char* words) {
    const bridge_status status = bridge_product_cpu(given, nullptr);
    if (status == BRIDGE_INVALID_ARGUMENT && std::strstr(bridge_last_error(), words) != nullptr)
      return;
    ++failures;
    std::printf("product_check: not refused: %s\n", words);
  };
  refused(nullptr, "null");
  call.dims = BRIDGE_MAX_DIMS + 1;
  refused(&call, "dimensions");
  call.dims = 0;
  call.k = -1;
  refused(&call, "negative");
  call.k = 1;
  call.b.dtype = BRIDGE_INT32;
  refused(&call, "floating");
  call.b.dtype = BRIDGE_FLOAT32;
  alignas(8) char memory[16] = {};
  call.b.data = memory + 1;
  refused(&call, "aligned");
  call.a.dtype = call.b.dtype = BRIDGE_FLOAT16;
  call.b.data = nullptr;
  call.tensor_cores = 1;
  refused(&call, "tensor cores on a CPU");
}

}  // namespace

int main(int count, char** arguments) {
  const int64_t rounds = count > 1 ? std::atoll(arguments[1]) : 12;
  product_test::random_words.seed(count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 1);
  check_refusals();
  static const int64_t sizes[] = {0, 1, 2, 5, 6, 7, 13, 14, 15, 16, 28, 31, 32, 33, 48, 65, 130};
  static const int64_t depths[] = {0,   1,    2,    7,    64,   255,  256,  257,  511, 512,
                                   513, 1023, 1024, 1025, 1500, 2048, 2305, 3073, 5000};
  for (const char* const* isa = bridge_cpu_isas(); *isa != nullptr; ++isa) {
    if (bridge_set_cpu_isa(*isa) != BRIDGE_OK) continue;
    for (int64_t i = 0; i < rounds; ++i) {
      const bridge_executor executor = bridge_pool(1 + static_cast<int32_t>(pick(3)));
      check_one(sizes[pick(17)], sizes[pick(17)], depths[pick(19)], &executor, *isa);
    }
    // Few rows, and more columns than a strip has.
    for (int64_t rows = 1; rows <= 8; ++rows) {
      const bridge_executor executor = bridge_pool(1 + static_cast<int32_t>(pick(3)));
      check_one(rows, 4200 / rows + pick(40), 1 + pick(4), &executor, *isa);
    }
    // Few rows or few columns, of any depth: b is read as it lies.
    for (int64_t few = 1; few <= 5; ++few) {
      const bridge_executor executor = bridge_pool(1 + static_cast<int32_t>(pick(3)));
      check_one(few, sizes[pick(17)], depths[pick(19)], &executor, *isa);
      check_one(sizes[pick(17)], few, depths[pick(19)], &executor, *isa);
    }
    // Several regions; a plain evaluation of so many elements takes seconds.
    if (isa != bridge_cpu_isas()) continue;
    const bridge_executor executor = bridge_pool(3);
    for (int64_t i = 0; i < 1; ++i)
      check_one(600 + pick(9), 560 + pick(40), 1030 + pick(9), &executor, *isa);
  }
  std::printf(failures == 0 ? "product_check: passed\n" : "product_check: %d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
