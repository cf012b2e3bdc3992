// Checks the interpreter of programs on the CPU. Random programs are compared with their definition
// bit for bit, on every instruction set and with several numbers of threads. Malformed words must
// be rejected, or run within their arrays.
//
//   program_check [programs [seed]]
#include <bridge/bridge.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "arena.h"
#include "drivers/rows/row_sum_tree.h"
#include "generated/cpu/programs.h"
#include "program_reference.h"
#include "random_call.h"
#include "random_program.h"

namespace {

using namespace bridge::random;  // NOLINT: the parts of a check
using bridge::interpreter::View;

ProgramSize any_size() {
  ProgramSize size;
  size.frees = chance(80);
  if (chance(15)) size.most_steps = 25;
  return size;
}

void compare(const char* isa, const bridge_program& call, const bridge_executor& executor,
             Arena& arena, const std::vector<std::vector<char>>& before,
             const std::vector<std::vector<char>>& expected, const std::string& text) {
  arena.restore(before);
  const bridge_status status = bridge_program_cpu(&call, &executor);
  check(status == BRIDGE_OK && arena.contents() == expected,
        std::string(isa) + ", " + std::to_string(executor.threads) + " threads: " + text +
            (status == BRIDGE_OK ? "" : bridge_last_error()));
}

// Runs rows of several chunks with their columns divided into parts.
void compare_split(int isa, const View& view, const bridge_program& call,
                   const bridge_executor& executor, Arena& arena,
                   const std::vector<std::vector<char>>& before,
                   const std::vector<std::vector<char>>& expected, const std::string& text) {
  using namespace bridge::interpreter;  // NOLINT: the row driver
  const Counts counts = counts_of(call);
  if (call.cols <= bridge::kSumChunk || counts.batches * counts.rows == 0) return;
  arena.restore(before);
  const int64_t cols = bridge::kSumChunk << pick(2);
  run_split(interpreting_machine(isa, is_double(call)), view, call, split_into(3, cols, &executor),
            0);
  check(arena.contents() == expected, std::to_string(cols) + " columns at a time: " + text);
}

struct BeforeAndAfter {
  std::vector<std::vector<char>> before, expected;
};

// Makes the arrays of a call, and computes the results of the definition.
BeforeAndAfter run_reference(const RandomProgram& program, const View& view, Arena& arena,
                             ProgramCall& made) {
  make_arrays(
      program.words, view, program.stores_last,
      [&](int64_t bytes) { return arena.allocate(bytes); }, &made);
  BeforeAndAfter found{arena.contents(), {}};
  bridge::reference::run(view, made.call);
  found.expected = arena.contents();
  return found;
}

void check_program(const RandomProgram& program, bool large) {
  const View view = view_of(program.words);
  Arena arena;
  ProgramCall made;
  choose_sizes(kCols[pick(sizeof kCols / sizeof kCols[0])], large ? 150000 : 6000, &made.call);
  const auto [before, expected] = run_reference(program, view, arena, made);
  static const bridge_executor one{nullptr, 1, nullptr}, few = bridge_pool(3);
  for (const char* const* isa = bridge_cpu_isas(); *isa != nullptr; ++isa) {
    if (bridge_set_cpu_isa(*isa) != BRIDGE_OK) continue;
    compare(*isa, made.call, one, arena, before, expected, made.text);
    if (large) compare(*isa, made.call, few, arena, before, expected, made.text);
    const auto number = static_cast<int>(isa - bridge_cpu_isas());
    compare_split(number, view, made.call, few, arena, before, expected, made.text);
  }
  bridge_set_cpu_isa(nullptr);
}

// The requests of a call to its executor: their number, and the largest number of tasks.
struct Asked {
  int64_t times, most_tasks;
};

// An executor that runs the last task first, in one thread.
void run_backwards(void* context, int64_t tasks, bridge_task task, void* task_context) {
  Asked& asked = *static_cast<Asked*>(context);
  ++asked.times;
  asked.most_tasks = std::max(asked.most_tasks, tasks);
  while (tasks-- > 0) task(task_context, tasks);
}

// A single long row has work for every thread; a short row stays in the calling thread.
void check_long_rows() {
  int64_t dealt = 0;
  for (int turn = 0; turn < 12; ++turn) {
    ProgramSize size;
    size.most_steps = 4;
    const RandomProgram program = random_program(size);
    const View view = view_of(program.words);
    for (const int64_t cols : {int64_t{1500}, 131072 + pick(3000)}) {
      Arena arena;
      ProgramCall made;
      made.call.cols = cols;
      made.call.dims = static_cast<int32_t>(pick(2));
      made.call.size[0] = 1;
      const auto [before, expected] = run_reference(program, view, arena, made);
      Asked asked{0, 0};
      const bridge_executor executor{&asked, 3, run_backwards};
      compare("auto", made.call, executor, arena, before, expected, made.text);
      if (cols == 1500) check(asked.times == 0, "a short row is not dealt: " + made.text);
      dealt += asked.times > 0 && asked.most_tasks == 3;
    }
  }
  check(dealt > 6, "few of the long rows were dealt to threads");
}

// Runs any words in a call, on arrays of the roles that they name.
void check_safe(const std::vector<int32_t>& given) {
  // A copy without spare capacity.
  const std::vector<int32_t> words(given.begin(), given.end());
  View view;
  const char* why = nullptr;
  Arena arena;
  ProgramCall made;
  choose_sizes(chance(50) ? pick(40) : kCols[pick(sizeof kCols / sizeof kCols[0])], 4000,
               &made.call);
  if (!bridge::interpreter::read(words.data(), static_cast<int64_t>(words.size()), &view, &why)) {
    bridge_program_array arrays[BRIDGE_MAX_PROGRAM_OPERANDS] = {};
    made.call.code = words.data();
    made.call.words = static_cast<int64_t>(words.size());
    made.call.operands = made.call.results = 1;
    made.call.operand = made.call.result = arrays;
    check(why != nullptr && bridge_program_cpu(&made.call, nullptr) == BRIDGE_INVALID_ARGUMENT,
          "malformed words are refused");
    return;
  }
  make_arrays(words, view, false, [&](int64_t bytes) { return arena.allocate(bytes); }, &made);
  const bridge_status status = bridge_program_cpu(&made.call, nullptr);
  check(status == BRIDGE_OK || status == BRIDGE_INVALID_ARGUMENT, "a mutation runs or is refused");
}

void check_malformed(int64_t programs) {
  for (int64_t i = 0; i < programs; ++i) {
    ProgramSize size;
    size.most_steps = 4;
    const std::vector<int32_t> words = random_program(size).words;
    for (int turn = 0; turn < 20; ++turn) check_safe(mutation_of(words));
    std::vector<int32_t> other(words.begin(),
                               words.begin() + pick(static_cast<int64_t>(words.size())));
    check_safe(other);
    other = words;
    other.push_back(any_word());
    check_safe(other);
    for (int32_t& word : other) word = any_word();
    other[0] = 1;
    check_safe(other);
  }
}

// Calls with one error each.
void check_refusals() {
  const RandomProgram program = random_program(ProgramSize{});
  const View view = view_of(program.words);
  Arena arena;
  ProgramCall made;
  bridge_program& call = made.call;
  call.cols = 5;
  call.dims = 2;
  call.size[0] = call.size[1] = 3;
  make_arrays(
      program.words, view, false, [&](int64_t bytes) { return arena.allocate(bytes); }, &made);
  const bridge_program whole = call;
  const auto operands = made.operands, results = made.results;
  const auto refused = [&](const char* what, const auto& spoil) {
    spoil();
    check(bridge_program_cpu(&call, nullptr) == BRIDGE_INVALID_ARGUMENT, what);
    call = whole;
    std::copy(operands.begin(), operands.end(), made.operands.begin());
    std::copy(results.begin(), results.end(), made.results.begin());
  };
  refused("words", [&] { call.code = nullptr; });
  refused("no words", [&] { call.words = -1; });
  refused("operands", [&] { ++call.operands; });
  refused("results", [&] { --call.results; });
  refused("arrays", [&] { call.operand = nullptr; });
  refused("dims", [&] { call.dims = BRIDGE_MAX_DIMS + 1; });
  refused("dims below 0", [&] { call.dims = -1; });
  refused("batch_dims", [&] { call.batch_dims = 3; });
  refused("size", [&] { call.size[1] = -1; });
  refused("cols", [&] { call.cols = -1; });
  refused("rows", [&] { call.size[0] = call.size[1] = INT64_MAX / 2; });
  refused("rows before a 0", [&] {
    call.dims = 3;
    call.size[0] = call.size[1] = INT64_MAX / 2;
    call.size[2] = 0;
  });
  refused("elements", [&] { call.cols = INT64_MAX / 8; });
  refused("dtype", [&] { made.operands[0].dtype = BRIDGE_INT16; });
  refused("dtype of a result", [&] { made.results[0].dtype = -1; });
  refused("memory", [&] { made.operands[0].data = nullptr; });
  refused("memory of a result", [&] { made.results[0].data = nullptr; });
  refused("alignment",
          [&] { made.operands[0].data = static_cast<char*>(made.operands[0].data) + 1; });
  check(bridge_program_cpu(nullptr, nullptr) == BRIDGE_INVALID_ARGUMENT, "no call");
  check(bridge_program_cpu(&call, nullptr) == BRIDGE_OK, "nothing is wrong");
}

// Processors produce NaNs of either sign: no operation may distinguish them.
template <class Real>
void check_signs_of_nan() {
  using bridge::math::canonical_nan;
  using bridge::math::to_bits;
  const Real others[] = {0, Real(-0.0), 1, -2, Real(INFINITY), Real(-INFINITY), Real(1e-40), 3e30f};
  const Real nan = bridge::math::bit_cast<Real>(bridge::math::Format<Real>::canonical_nan);
  for (int32_t operation = 0; operation < bridge::interpreter::kElementwise; ++operation) {
    for (int nans = 1; nans < 8; ++nans) {
      for (int turn = 0; turn < 64; ++turn) {
        Real x[3], y[3];
        for (int i = 0; i < 3; ++i) {
          x[i] = y[i] = others[pick(8)];
          if ((nans >> i & 1) == 0) continue;
          x[i] = nan;
          y[i] = chance(50) ? -nan : nan;
        }
        const Real a = bridge::reference::evaluate(operation, x[0], x[1], x[2]);
        const Real b = bridge::reference::evaluate(operation, y[0], y[1], y[2]);
        check(to_bits(canonical_nan(a)) == to_bits(canonical_nan(b)),
              "the sign of a NaN counts in operation " + std::to_string(operation));
      }
    }
  }
}

// A row has the same bits alone as among others.
void check_rows_alone() {
  for (int turn = 0; turn < 40; ++turn) {
    const RandomProgram program = random_program(any_size());
    const View view = view_of(program.words);
    if (bridge::interpreter::has_column_sums(view)) continue;
    Arena arena;
    ProgramCall made;
    bridge_program& call = made.call;
    call.cols = kCols[pick(sizeof kCols / sizeof kCols[0])];
    call.dims = 1;
    call.size[0] = 2 + pick(9);
    make_arrays(
        program.words, view, program.stores_last,
        [&](int64_t bytes) { return arena.allocate(bytes); }, &made);
    for (int32_t i = 0; i < view.instructions; ++i) {
      // The random words depend on the number of the row.
      if ((view.code[i].operation & ~bridge::interpreter::kAgain) == bridge::interpreter::kKeep) {
        call.index_cols = 0;
      }
    }
    const auto before = arena.contents();
    check(bridge_program_cpu(&call, nullptr) == BRIDGE_OK, made.text);
    const auto expected = arena.contents();
    arena.restore(before);
    const int64_t rows = call.size[0];
    call.size[0] = 1;
    const auto step = [](std::vector<bridge_program_array>& arrays) {
      for (bridge_program_array& array : arrays) {
        array.data =
            static_cast<char*>(array.data) + array.stride[0] * bridge::element_bytes(array.dtype);
      }
    };
    for (int64_t row = 0; row < rows; ++row) {
      check(bridge_program_cpu(&call, nullptr) == BRIDGE_OK, made.text);
      step(made.operands);
      step(made.results);
    }
    check(arena.contents() == expected, "a row alone: " + made.text);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t programs = argc > 1 ? atoll(argv[1]) : 400;
  if (argc > 2) random_bits.seed(static_cast<uint64_t>(atoll(argv[2])));
  for (int64_t i = 0; i < programs; ++i) {
    check_program(random_program(any_size()), i % 16 == 0);
    if (i % 4 == 0) check_program({reductions(), false}, false);
  }
  check_malformed(programs / 2);
  check_refusals();
  check_signs_of_nan<float>();
  check_signs_of_nan<double>();
  check_rows_alone();
  check_long_rows();
  printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
