// Maps between places on the CPU: checks a call and divides its outputs among threads.
#include "taps/taps.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>

#include "cpu/error.h"
#include "cpu/parallel.h"
#include "drivers/dtypes.h"

namespace bridge {
namespace {

constexpr PerIsa<TapsTable> kTables = BRIDGE_PER_ISA(taps_table);

const char* wrong_with(const bridge_taps& call) {
  if (call.kind < BRIDGE_TAPS_WEIGHTED || call.kind > BRIDGE_TAPS_ROW_MEAN)
    return "a kind that is no map";
  for (const int64_t size : {call.outer, call.places, call.outputs, call.inner, call.taps})
    if (size < 0) return "a negative size";
  if (!is_floating(call.dtype)) return "a dtype that is not floating";
  const bool has_table = call.kind <= BRIDGE_TAPS_LARGEST;
  const bool has_result = call.outer > 0 && call.outputs > 0 && call.inner > 0;
  if (has_result && call.places == 0 && call.kind != BRIDGE_TAPS_OF_CHOSEN) return "no place";
  if (call.kind == BRIDGE_TAPS_ROW_MEAN && call.outputs != 1) return "other outputs than one";
  if (has_table && call.kind != BRIDGE_TAPS_AVERAGE && call.taps < 1) return "no tap";
  const auto is_aligned = [](const void* data, int32_t dtype) {
    return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(element_bytes(dtype)) == 0;
  };
  const int32_t result = call.kind == BRIDGE_TAPS_LARGEST ? int32_t{BRIDGE_INT32} : call.dtype;
  if (!is_aligned(call.x, call.dtype) || !is_aligned(call.result, result) ||
      !is_aligned(call.table, BRIDGE_INT32) || !is_aligned(call.chosen, BRIDGE_INT32) ||
      !is_aligned(call.weights, call.dtype == BRIDGE_FLOAT64 ? BRIDGE_FLOAT64 : BRIDGE_FLOAT32))
    return "an array that is not aligned to its elements";
  return nullptr;
}

bridge_status run(const bridge_taps& call, const bridge_executor* executor) {
  if (const char* wrong = wrong_with(call)) return fail(BRIDGE_INVALID_ARGUMENT, "taps: %s", wrong);
  if (call.outer == 0 || call.outputs == 0 || call.inner == 0) return BRIDGE_OK;
  const int64_t count = call.kind <= BRIDGE_TAPS_LARGEST ? std::max<int64_t>(call.taps, 1) : 1;
  const bool reads_all = call.kind >= BRIDGE_TAPS_OF_CHOSEN;
  const int64_t most = std::max(call.places * int64_t{reads_all}, call.outputs);
  const int64_t work = call.outer * most * call.inner * count;
  const TapsTable* const table = kTables.for_elements(work);
  if (table == nullptr) return BRIDGE_INVALID_ARGUMENT;
  const taps::Kernel& kernel = table->of[call.dtype];
  const int64_t units = kernel.units(call);
  const int64_t tasks = std::min(units, parts_for(work, executor));
  const size_t bytes = kernel.scratch_bytes(call);
  std::atomic<bool> failed{false};
  parallel_for(executor, tasks, [&](int64_t task) {
    const std::unique_ptr<char[]> scratch(new (std::nothrow) char[bytes]);
    if (scratch == nullptr) {
      failed = true;
      return;
    }
    kernel.run(call, part_begin(units, tasks, task), part_begin(units, tasks, task + 1),
               scratch.get());
  });
  return failed ? fail(BRIDGE_OUT_OF_MEMORY, "taps: no memory for its sums") : BRIDGE_OK;
}

}  // namespace
}  // namespace bridge

extern "C" bridge_status bridge_taps_cpu(const bridge_taps* call, const bridge_executor* executor) {
  if (call == nullptr) return bridge::fail(BRIDGE_INVALID_ARGUMENT, "taps: the call is null");
  return bridge::run(*call, executor);
}
