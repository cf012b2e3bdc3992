// Programs on the CPU: splits the rows of a call, or the columns of few rows, among threads.
// machine.cpp, compiled once for each instruction set, runs them.
#include "program/interpreter.h"

#include <string.h>

#include <atomic>
#include <memory>
#include <new>

#include "cpu/error.h"
#include "cpu/huge_pages.h"
#include "cpu/parallel.h"
#include "drivers/columns/column_sum_tree.h"
#include "drivers/dtypes.h"
#include "drivers/rows/row_sum_tree.h"
#include "generated/cpu/programs.h"
#include "program/machine.h"
#include "program/program_key.h"

namespace bridge {
namespace {

using interpreter::ColumnSplit;
using interpreter::Counts;
using interpreter::KnownProgram;
using interpreter::MachineTable;
using interpreter::Role;
using interpreter::RoundedSums;
using interpreter::Rows;
using interpreter::Sums;
using interpreter::View;

constexpr PerIsa<InterpreterMachines> kMachines = BRIDGE_PER_ISA(interpreter_machines);

// The scratch memory of one task, on the stack if it is small.
class Scratch {
 public:
  explicit Scratch(size_t bytes) : is_small_(bytes <= sizeof small_) {
    if (!is_small_) large_.reset(new (std::nothrow) char[bytes]);
  }
  // Returns null if there is no memory: a task must not throw.
  void* data() { return is_small_ ? small_ : large_.get(); }

 private:
  alignas(64) char small_[48 * 1024];
  bool is_small_;
  std::unique_ptr<char[]> large_;
};

RoundedSums sums_of(const bridge_program& call, int32_t result, int64_t batch) {
  const bridge_program_array& array = call.result[result];
  int64_t offset = 0;
  for (int32_t d = call.batch_dims - 1; d >= 0; --d) {
    offset += batch % call.size[d] * array.stride[d];
    batch /= call.size[d];
  }
  return {static_cast<char*>(array.data) + offset * element_bytes(array.dtype), array.dtype};
}

// Writes the sums over no rows, which are zero.
void clear_sums(const View& view, const bridge_program& call, int64_t batches) {
  for (int32_t i = 0; i < call.results; ++i) {
    if (view.result_role(i) != Role::row) continue;
    for (int64_t batch = 0; batch < batches; ++batch) {
      const RoundedSums array = sums_of(call, i, batch);
      memset(array.data, 0, static_cast<size_t>(call.cols * element_bytes(array.dtype)));
    }
  }
}

void run_tasks(const bridge_executor* executor, int64_t tasks, bridge_task task, void* context) {
  parallel_for(executor, tasks, [=](int64_t i) { task(context, i); });
}

constexpr ColumnSplit kWholeRows = {1, 0, run_tasks, nullptr};

// Returns the distribution of columns over threads, for calls with too few units (rows, or leaves
// of rows) to give every thread work. Threads synchronize in every section of a program, so the
// distribution must save a quarter of the time.
ColumnSplit split_for(const bridge_program& call, const Counts& counts, int64_t units,
                      const bridge_executor* executor) {
  const int64_t threads = threads_for(counts.batches * counts.rows * call.cols, executor);
  if (threads <= units) return kWholeRows;
  const int64_t chunks = (call.cols + kSumChunk - 1) / kSumChunk;
  const int64_t most_chunks = (chunks + threads - 1) / threads;  // most chunks of one thread
  if (4 * most_chunks * units >= 3 * chunks) return kWholeRows;
  const int64_t tasks = chunks < threads ? chunks : threads;
  int64_t cols = kSumChunk;  // columns of a part; each task has several parts, as in parts_for
  while (call.cols / (2 * cols) >= 4 * tasks) cols *= 2;
  return interpreter::split_into(tasks, cols, executor);
}

// Calls run(unit, scratch) for every unit, distributed over at most `parts` tasks with `bytes`
// bytes of scratch memory each. Throws std::bad_alloc.
template <class Run>
void for_each_unit(const bridge_executor* executor, int64_t units, int64_t parts, size_t bytes,
                   const Run& run) {
  const int64_t tasks = units < parts ? units : parts;
  std::atomic<bool> failed{false};
  parallel_for(executor, tasks, [&](int64_t task) {
    Scratch scratch(bytes);
    if (scratch.data() == nullptr) {
      failed = true;
      return;
    }
    const int64_t end = part_begin(units, tasks, task + 1);
    for (int64_t unit = part_begin(units, tasks, task); unit < end; ++unit) {
      run(unit, scratch.data());
    }
  });
  if (failed) throw std::bad_alloc();
}

void run_rows(const MachineTable& machine, const View& view, const bridge_program& call,
              const Counts& counts, uint32_t streamed, const bridge_executor* executor) {
  const int64_t all = counts.batches * counts.rows;
  const int64_t parts = parts_for(all * (call.cols > 0 ? call.cols : 1), executor);
  const int64_t per_batch =
      counts.batches >= parts ? 1 : (parts + counts.batches - 1) / counts.batches;
  const int64_t row_parts = per_batch < counts.rows ? per_batch : counts.rows;
  const int64_t most = (counts.rows + row_parts - 1) / row_parts;
  const size_t bytes = machine.scratch_bytes(view, call, most, kWholeRows);
  const int64_t units = counts.batches * row_parts;
  for_each_unit(executor, units, parts, bytes, [&](int64_t unit, void* scratch) {
    const int64_t part = unit % row_parts;
    const int64_t first = part_begin(counts.rows, row_parts, part);
    const int64_t count = part_begin(counts.rows, row_parts, part + 1) - first;
    machine.run(view, call, {unit / row_parts, first, count, nullptr, streamed}, kWholeRows,
                scratch);
  });
}

// The most leaves of a node: the levels of its tree stay in the cache.
constexpr int64_t kMostNodeLeaves = 32 * kLeaves;

// Runs a program with column sums. A unit is a power of two of leaves, a node of the tree. If a
// batch has several nodes, they are collected in a workspace and a second pass adds them. Throws
// std::bad_alloc.
void run_nodes(const MachineTable& machine, const View& view, const bridge_program& call,
               const Counts& counts, bool is_double, uint32_t streamed,
               const bridge_executor* executor) {
  const int64_t parts = parts_for(counts.batches * counts.rows * call.cols, executor);
  const int64_t leaves = leaf_count(counts.rows);
  int64_t node_leaves = kMostNodeLeaves;
  const auto nodes_for = [&] { return (leaves + node_leaves - 1) / node_leaves; };
  while (node_leaves > 1 && counts.batches * nodes_for() < parts) node_leaves /= 2;
  const int64_t nodes = nodes_for(), units = counts.batches * nodes;
  const int64_t node_bytes = call.cols * (is_double ? 8 : 4);
  int32_t sums = 0;
  for (int32_t i = 0; i < call.results; ++i) sums += view.result_role(i) == Role::row;
  std::unique_ptr<char[]> workspace;
  if (nodes > 1) {
    int64_t bytes = 0;
    if (__builtin_mul_overflow(units * sums, node_bytes, &bytes)) throw std::bad_alloc();
    workspace.reset(new char[static_cast<size_t>(bytes)]);
  }
  const auto node_of = [&](int64_t sum, int64_t unit) {
    return workspace.get() + (sum * units + unit) * node_bytes;
  };
  const int64_t most = node_leaves * kLeafRows;
  const size_t bytes =
      machine.scratch_bytes(view, call, most < counts.rows ? most : counts.rows, kWholeRows);
  for_each_unit(executor, units, parts, bytes, [&](int64_t unit, void* scratch) {
    const int64_t batch = unit / nodes, first = unit % nodes * most;
    Sums targets[BRIDGE_MAX_PROGRAM_RESULTS] = {};
    int64_t sum = 0;
    for (int32_t i = 0; i < call.results; ++i) {
      if (view.result_role(i) != Role::row) continue;
      targets[i] =
          nodes > 1 ? Sums{node_of(sum++, unit), {}} : Sums{nullptr, sums_of(call, i, batch)};
    }
    const int64_t left = counts.rows - first;
    machine.run(view, call, {batch, first, most < left ? most : left, targets, streamed},
                kWholeRows, scratch);
  });
  if (nodes == 1) return;
  const int64_t adding = parts_for(sums * units * call.cols, executor);
  parallel_for_parts(executor, sums * counts.batches, adding, [&](int64_t task) {
    const int64_t batch = task % counts.batches;
    int64_t sum = 0;
    for (int32_t i = 0; i < call.results; ++i) {
      if (view.result_role(i) != Role::row || sum++ != task / counts.batches) continue;
      machine.add_nodes(node_of(task / counts.batches, batch * nodes), nodes, call.cols,
                        sums_of(call, i, batch));
    }
  });
}

// Returns true if the elements of a result fill its memory, in any order of its dimensions.
bool is_dense(const bridge_program_array& array, const bridge_program& call, int64_t cols) {
  const int64_t stride = array.pairs == 1 ? array.col_stride / 2 : array.col_stride;
  int64_t last = (cols - 1) * stride, elements = cols;
  for (int32_t d = 0; d < call.dims; ++d) {
    if (array.stride[d] < 0) return false;
    last += (call.size[d] - 1) * array.stride[d];
    elements *= call.size[d];
  }
  return last + 1 == elements;
}

// Returns true if memory bounds the speed of a program, not arithmetic. Other programs gain nothing
// from stores past the caches, which need a tile.
bool is_light(const View& view) {
  for (int32_t i = 0; i < view.instructions; ++i)
    if (interpreter::takes_long(view.code[i].operation & ~interpreter::kAgain)) return false;
  return true;
}

// Requests huge pages for large results in new memory, which is no operand's. Returns one bit for
// each result to be written past the caches (huge_pages.h).
uint32_t prepare_results(const MachineTable& machine, const View& view, const bridge_program& call,
                         const Counts& counts) {
  uint32_t streamed = 0;
  for (int32_t i = 0; i < call.results; ++i) {
    const bridge_program_array& array = call.result[i];
    const Role role = view.result_role(i);
    if (role != Role::full && role != Role::halves) continue;
    const int64_t cols = role == Role::halves ? 2 * call.cols : call.cols;
    const int64_t bytes = counts.batches * counts.rows * cols * element_bytes(array.dtype);
    if (bytes < kLeastLargeBytes) continue;
    bool is_operand = false;
    for (int32_t o = 0; o < call.operands; ++o)
      is_operand = is_operand || call.operand[o].data == array.data;
    if (is_operand || !is_dense(array, call, cols)) continue;
    prefer_huge_pages(array.data, bytes);
    if (is_streamed(array.data, bytes) && (machine.is_light || is_light(view)))
      streamed |= uint32_t{1} << i;
  }
  return streamed;
}

bridge_status run(const bridge_program& call, const KnownProgram* known,
                  const bridge_executor* executor) {
  View own;
  const bridge_status status =
      known == nullptr ? interpreter::validate(call, &own, error_message(), kErrorBytes)
                       : interpreter::check_arrays(call, known->view, error_message(), kErrorBytes);
  if (status != BRIDGE_OK) return status;
  const View& view = known == nullptr ? own : known->view;
  const Counts counts = interpreter::counts_of(call);
  const int isa = isa_for(counts.batches * counts.rows * call.cols);
  if (isa < 0) return BRIDGE_INVALID_ARGUMENT;
  const MachineTable* const generated = interpreter::generated_machine(call, isa, known);
  const bool is_double = interpreter::is_double(call);
  interpreter::run_on(
      generated != nullptr ? *generated : interpreter::interpreting_machine(isa, is_double), view,
      call, executor);
  return BRIDGE_OK;
}

}  // namespace

const interpreter::MachineTable& interpreter::interpreting_machine(int isa, bool is_double) {
  return kMachines.tables[isa]->of[is_double];
}

void interpreter::run_on(const MachineTable& machine, const View& view, const bridge_program& call,
                         const bridge_executor* executor) {
  const Counts counts = counts_of(call);
  if (counts.batches == 0) return;
  if (counts.rows == 0) return clear_sums(view, call, counts.batches);
  const uint32_t streamed = prepare_results(machine, view, call, counts);
  const bool has_sums = has_column_sums(view);
  const int64_t units = counts.batches * (has_sums ? leaf_count(counts.rows) : counts.rows);
  const ColumnSplit split =
      machine.has_whole_rows ? kWholeRows : split_for(call, counts, units, executor);
  if (split.tasks > 1)
    run_split(machine, view, call, split, streamed);
  else if (has_sums)
    run_nodes(machine, view, call, counts, is_double(call), streamed, executor);
  else
    run_rows(machine, view, call, counts, streamed, executor);
}

ColumnSplit interpreter::split_into(int64_t tasks, int64_t cols, const bridge_executor* executor) {
  return {tasks, cols, run_tasks, executor};
}

void interpreter::run_split(const MachineTable& machine, const View& view,
                            const bridge_program& call, const ColumnSplit& split,
                            uint32_t streamed) {
  const Counts counts = counts_of(call);
  Scratch scratch(machine.scratch_bytes(view, call, counts.rows, split));
  if (scratch.data() == nullptr) throw std::bad_alloc();
  const FloatEnvironment ieee;
  for (int64_t batch = 0; batch < counts.batches; ++batch) {
    Sums targets[BRIDGE_MAX_PROGRAM_RESULTS] = {};
    for (int32_t i = 0; i < call.results; ++i) {
      if (view.result_role(i) == Role::row) targets[i] = {nullptr, sums_of(call, i, batch)};
    }
    machine.run(view, call, {batch, 0, counts.rows, targets, streamed}, split, scratch.data());
  }
}

bool interpreter::know(const int32_t* words, int64_t count, KnownProgram* program) {
  const char* why = nullptr;
  if (!read(words, count, &program->view, &why)) return false;
  program->hash = hash_of(words, count);
  return true;
}

bridge_status interpreter::run_on_cpu(const bridge_program& call, const KnownProgram* known,
                                      const bridge_executor* executor) {
  try {
    return run(call, known, executor);
  } catch (const std::bad_alloc&) {
    return fail(BRIDGE_OUT_OF_MEMORY, "program: no memory for its registers");
  } catch (...) {
    return fail(BRIDGE_INTERNAL, "program: an unexpected exception");
  }
}

}  // namespace bridge

extern "C" bridge_status bridge_program_cpu(const bridge_program* call,
                                            const bridge_executor* executor) {
  if (call == nullptr) return bridge::fail(BRIDGE_INVALID_ARGUMENT, "program: the call is null");
  return bridge::interpreter::run_on_cpu(*call, nullptr, executor);
}
