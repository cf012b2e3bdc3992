// The choice of columns on the CPU: checks a call and divides its rows among threads.
#include "selection/selection.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>

#include "cpu/error.h"
#include "cpu/parallel.h"
#include "selection/limits.h"

namespace bridge {
namespace {

constexpr PerIsa<SelectionTable> kTables = BRIDGE_PER_ISA(selection_table);
// A column of a draw takes as long as so many of a choice of the largest.
constexpr int64_t kDrawWork = 16;

bool is_aligned(const void* data, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes) == 0;
}

bridge_status run(const bridge_selection& call, const bridge_executor* executor) {
  const char* wrong = selection::wrong_with(call);
  if (wrong == nullptr &&
      !(is_aligned(call.x, element_bytes(call.dtype)) && is_aligned(call.words, 4) &&
        is_aligned(call.result, element_bytes(call.index_dtype))))
    wrong = "an array that is not aligned to its elements";
  if (wrong != nullptr) return fail(BRIDGE_INVALID_ARGUMENT, "selection: %s", wrong);
  if (call.rows == 0 || call.count == 0) return BRIDGE_OK;
  const bool is_draw = call.words != nullptr;
  const int64_t work = call.rows * call.cols * (is_draw ? kDrawWork : 1);
  const SelectionTable* const table = kTables.for_elements(work);
  if (table == nullptr) return BRIDGE_INVALID_ARGUMENT;
  const int64_t tasks = std::min(call.rows, parts_for(work, executor));
  const auto numbers = static_cast<size_t>(is_draw && call.top_p < 1 ? call.cols : 0);
  std::atomic<bool> failed{false};
  parallel_for(executor, tasks, [&](int64_t task) {
    const std::unique_ptr<uint64_t[]> scratch(numbers == 0 ? nullptr
                                                           : new (std::nothrow) uint64_t[numbers]);
    if (numbers != 0 && scratch == nullptr) {
      failed = true;
      return;
    }
    table->run[call.dtype](call, part_begin(call.rows, tasks, task),
                           part_begin(call.rows, tasks, task + 1), scratch.get());
  });
  return failed ? fail(BRIDGE_OUT_OF_MEMORY, "selection: no memory for the weights of a row")
                : BRIDGE_OK;
}

}  // namespace
}  // namespace bridge

extern "C" bridge_status bridge_selection_cpu(const bridge_selection* call,
                                              const bridge_executor* executor) {
  if (call == nullptr) return bridge::fail(BRIDGE_INVALID_ARGUMENT, "selection: the call is null");
  return bridge::run(*call, executor);
}
