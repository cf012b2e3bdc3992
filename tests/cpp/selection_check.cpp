// Checks choices of columns on the CPU against a sort of the whole row: random sizes and dtypes, on
// every instruction set and several threads. Arrays have exactly their extent.
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "selection_reference.h"

namespace {

using namespace bridge::selection_reference;  // NOLINT: the parts of a check

int failures = 0;

void check_one(int64_t rows, int64_t cols, bool is_draw, int32_t threads, const char* isa) {
  std::vector<std::unique_ptr<char[]>> memory;
  bridge_selection call;
  make_call(
      rows, cols, is_draw,
      [&](int64_t bytes) {
        memory.emplace_back(new char[static_cast<size_t>(bytes)]);
        return memory.back().get();
      },
      &call);
  const bridge_executor executor = bridge_pool(threads);
  const bridge_status status = bridge_selection_cpu(&call, &executor);
  if (status == BRIDGE_OK && is_right(call)) return;
  ++failures;
  std::printf("selection_check: %s, threads %d: %s%s\n", isa, threads, describe(call).c_str(),
              status == BRIDGE_OK ? "other columns" : bridge_last_error());
}

void check_refusals() {
  const auto refused = [](const bridge_selection* given, const char* words) {
    const bridge_status status = bridge_selection_cpu(given, nullptr);
    if (status == BRIDGE_INVALID_ARGUMENT && std::strstr(bridge_last_error(), words) != nullptr)
      return;
    ++failures;
    std::printf("selection_check: not refused: %s\n", words);
  };
  refused(nullptr, "null");
  for_refusals(refused);
}

}  // namespace

int main(int count, char** arguments) {
  const int64_t rounds = count > 1 ? std::atoll(arguments[1]) : 60;
  random_words.seed(count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 1);
  check_refusals();
  static const int64_t rows[] = {0, 1, 2, 3, 7, 30};
  static const int64_t cols[] = {1, 2, 3, 31, 64, 65, 128, 200, 257, 1000};
  for (const char* const* isa = bridge_cpu_isas(); *isa != nullptr; ++isa) {
    if (bridge_set_cpu_isa(*isa) != BRIDGE_OK) continue;
    for (int64_t i = 0; i < rounds; ++i)
      check_one(rows[pick(6)], cols[pick(10)], i % 2 == 0, 1 + static_cast<int32_t>(pick(3)), *isa);
    check_one(40, 5000, true, 3, *isa);
    check_one(200, 1100, false, 3, *isa);
  }
  std::printf(failures == 0 ? "selection_check: passed\n" : "selection_check: %d failures\n",
              failures);
  return failures == 0 ? 0 : 1;
}
