// Checks the CUDA interpreter of programs, through its C function, on the emulator or a GPU. Every
// result must have the bits of the CPU (where it is not linked, of the definition,
// program_reference.h), for any order of a block's threads. Arrays have exactly their extent, so
// that AddressSanitizer or compute-sanitizer detects any access beside them.
//
//   interpreter_simt [number of random programs [seed]]
#include <bridge/bridge.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "../cpp/program_reference.h"
#include "../cpp/random_call.h"
#include "../cpp/random_program.h"
#include "executor.h"
#ifndef BRIDGE_EXECUTOR_GPU
#include "program/interpreter_cuda.h"
#endif

namespace {

using namespace bridge::random;  // NOLINT: the parts of a check
namespace executor = bridge::executor;

class Arena {
 public:
  char* allocate(int64_t bytes) {
    pieces_.push_back({executor::allocate(static_cast<size_t>(bytes)), static_cast<size_t>(bytes)});
    return pieces_.back().memory.get();
  }
  std::vector<std::vector<char>> contents() const {
    std::vector<std::vector<char>> all;
    for (const Piece& piece : pieces_) {
      all.emplace_back(piece.memory.get(), piece.memory.get() + piece.bytes);
    }
    return all;
  }
  void restore(const std::vector<std::vector<char>>& contents) {
    for (size_t i = 0; i < pieces_.size(); ++i) {
      std::copy(contents[i].begin(), contents[i].end(), pieces_[i].memory.get());
    }
  }

 private:
  struct Piece {
    executor::Memory memory;
    size_t bytes;
  };
  std::vector<Piece> pieces_;
};

// Returns the largest size in bytes that bridge.h allows for the workspace.
size_t promised_bytes(const View& view, const bridge_program& call) {
  int64_t batches = 1, rows = 1, sums = 0;
  bool is_double = false;
  for (int32_t d = 0; d < call.dims; ++d) (d < call.batch_dims ? batches : rows) *= call.size[d];
  for (int32_t i = 0; i < call.results; ++i) sums += view.result_role(i) == Role::row;
  for (int32_t i = 0; i < call.operands; ++i) is_double |= call.operand[i].dtype == BRIDGE_FLOAT64;
  for (int32_t i = 0; i < call.results; ++i) is_double |= call.result[i].dtype == BRIDGE_FLOAT64;
  const int64_t bytes = is_double ? 8 : 4;
  if (sums == 0) return 0;
  const int64_t values = (sums * batches * rows * call.cols * bytes + 15) / 16 * 16;
  const int64_t chunks = (rows + 127) / 128;
  const int64_t tree = rows <= 128 ? 0 : batches * call.cols * (chunks + chunks / 32) * bytes + 256;
  return static_cast<size_t>(values + tree);
}

bridge_status run_on_device(const bridge_program& call, size_t bytes) {
  executor::Memory workspace = executor::allocate(bytes);
  std::memset(workspace.get(), 0xff, bytes);
  // Copies of the words and the descriptors, which are gone when the kernels run.
  std::vector<int32_t> words(call.code, call.code + call.words);
  std::vector<bridge_program_array> operands, results;
  for (int32_t i = 0; i < call.operands; ++i) operands.push_back(executor::placed(call.operand[i]));
  for (int32_t i = 0; i < call.results; ++i) results.push_back(executor::placed(call.result[i]));
  bridge_program placed = call;
  placed.code = words.data();
  placed.operand = operands.data();
  placed.result = results.data();
  const bridge_status status = bridge_program_cuda(
      &placed, bytes > 0 ? executor::placed(workspace) : nullptr, bytes, nullptr);
  std::fill(words.begin(), words.end(), -1);
  const std::string failure = executor::finish();
  check(failure.empty(), failure);
  return status;
}

bool says(const char* what) { return std::strstr(bridge_cuda_last_error(), what) != nullptr; }

// Runs the words on arrays of these sizes. `may_be_refused` is true if they may need too many
// registers.
void compare(const std::vector<int32_t>& words, bool stores_last, const bridge_program& sizes,
             bool may_be_refused = false) {
  const View view = view_of(words);
  Arena arena;
  ProgramCall made;
  made.call = sizes;
  make_arrays(
      words, view, stores_last, [&](int64_t bytes) { return arena.allocate(bytes); }, &made);
  const size_t bytes = bridge_program_cuda_workspace(&made.call);
  check(bytes <= promised_bytes(view, made.call),
        "the workspace is as large as promised: " + made.text);
  const auto before = arena.contents();
#ifdef BRIDGE_SIMT_WITH_CPU
  check(bridge_program_cpu(&made.call, nullptr) == BRIDGE_OK, "on the CPU: " + made.text);
#else
  bridge::reference::run(view, made.call);
#endif
  const auto expected = arena.contents();
  arena.restore(before);
  executor::next_order();
  const bridge_status status = run_on_device(made.call, bytes);
  if (may_be_refused && status != BRIDGE_OK && says("registers")) return;
  check(status == BRIDGE_OK && arena.contents() == expected,
        made.text + (status == BRIDGE_OK ? "" : bridge_cuda_last_error()));
}

void run_random(int programs) {
  static const int64_t cols[] = {0, 1, 2, 7, 31, 32, 33, 64, 100, 128, 200, 257};
  static const int64_t long_cols[] = {511, 512, 513, 700, 1000, 1023, 1024, 1025, 1300, 2049, 2500};
  for (int i = 0; i < programs; ++i) {
    ProgramSize size;
    size.frees = chance(80);
    if (chance(10)) size.most_steps = 25;
    const RandomProgram program = random_program(size);
    bridge_program sizes{};
    if (chance(70))
      choose_sizes(cols[pick(12)], 3000, &sizes);
    else
      choose_sizes(long_cols[pick(11)], chance(20) ? 12000 : 4000, &sizes);
    compare(program.words, program.stores_last, sizes);
  }
}

void run_reductions() {
  const std::vector<int32_t> words = reductions();
  for (const int64_t cols :
       {1, 33, 70, 128, 200, 257, 300, 450, 512, 513, 1000, 1025, 2500, 5000}) {
    for (int turn = 0; turn < 5; ++turn) {
      bridge_program sizes{};
      sizes.cols = cols;
      sizes.dims = 1;
      sizes.size[0] = 1 + 2000 / cols % 20;
      compare(words, false, sizes);
    }
  }
}

// Programs with so many words that they need the long parameters, and so many registers that a
// block has fewer threads.
void run_large() {
  for (int i = 0; i < 10; ++i) {
    ProgramSize size;
    size.frees = i % 2 == 0;
    size.most_phases = 2;
    size.most_steps = size.frees ? 150 : 10 + 10 * i;
    const RandomProgram program = random_program(size);
    bridge_program sizes{};
    sizes.cols = i % 4 < 2 ? 70 : 1100;
    compare(program.words, program.stores_last, sizes, true);
  }
}

// Changed words that pass the checks may compute anything, but only within their arrays.
void run_mutations(int programs) {
  for (int i = 0; i < programs; ++i) {
    ProgramSize size;
    size.most_steps = 4;
    const std::vector<int32_t> words = mutation_of(random_program(size).words);
    View view;
    const char* why = nullptr;
    if (!read(words.data(), static_cast<int64_t>(words.size()), &view, &why)) continue;
    Arena arena;
    ProgramCall made;
    choose_sizes(chance(70) ? pick(40) : 1100, 200, &made.call);
    make_arrays(words, view, false, [&](int64_t bytes) { return arena.allocate(bytes); }, &made);
    const bridge_status status =
        run_on_device(made.call, bridge_program_cuda_workspace(&made.call));
    check(status == BRIDGE_OK || says("registers"), "a mutation runs: " + made.text);
  }
}

// A program of `steps` additions, each into a register of its own, or all into one register.
std::vector<int32_t> additions(int32_t steps, bool apart) {
  const Header header{kVersion, 1, 1, apart ? steps + 1 : 1, 0, 0, 0, 0, 0, 0, 1};
  constexpr auto kFull = static_cast<int32_t>(Role::full);
  std::vector<int32_t> words(kHeaderWords);
  std::memcpy(words.data(), &header, sizeof header);
  words.insert(words.end(), {kFull, kFull, 0, steps + 2, 0});
  words.insert(words.end(), {kLoad, 0, 0, 0, 0, 0});
  int32_t at = 0;
  for (int32_t i = 0; i < steps; ++i) {
    words.insert(words.end(), {kAdd, apart ? at + 1 : at, at, at, 0, 0});
    at += apart;
  }
  words.insert(words.end(), {kStore, 0, 0, at, 0, 0});
  return words;
}

// A program of the sums over rows of an operand.
std::vector<int32_t> column_sum() {
  std::vector<int32_t> words = additions(0, false);
  words[kHeaderWords + 1] = static_cast<int32_t>(Role::row);
  words[words.size() - kInstructionWords] = kAddColumns;
  return words;
}

// Two levels of the tree of column sums above the chunks, and batches with sums in any layout.
void run_tall() {
  const std::vector<int32_t> words = column_sum();
  for (const int64_t rows : {0, 128, 129, 300, 300, 300, 8193}) {
    bridge_program sizes{};
    sizes.cols = 3;
    sizes.dims = 3, sizes.batch_dims = 2;
    sizes.size[0] = 2, sizes.size[1] = rows > 1000 ? 1 : 3, sizes.size[2] = rows;
    compare(words, false, sizes);
  }
}

void run_refusals() {
  std::vector<float> memory(64);
  bridge_program_array array{memory.data(), BRIDGE_FLOAT32, 0, {}, 1};
  std::vector<int32_t> words;
  bridge_program call{};
  call.cols = 64;
  call.operands = call.results = 1;
  call.operand = call.result = &array;
  const auto run = [&](const std::vector<int32_t>& given) {
    words = given;
    call.code = words.data();
    call.words = static_cast<int64_t>(words.size());
    return bridge_program_cuda(&call, nullptr, 0, nullptr);
  };
  check(run(additions(2100, false)) == BRIDGE_INVALID_ARGUMENT && says(" fit"), "too many words");
  check(run(additions(1000, true)) == BRIDGE_INVALID_ARGUMENT && says("registers"),
        "too many registers");
  check(run({1, 2, 3}) == BRIDGE_INVALID_ARGUMENT && says("cannot be read"), "malformed words");
  check(bridge_program_cuda_workspace(&call) == 0, "a malformed call needs no workspace");
  check(bridge_program_cuda(nullptr, nullptr, 0, nullptr) == BRIDGE_INVALID_ARGUMENT, "no call");
#ifndef BRIDGE_EXECUTOR_GPU
  check(run(additions(2000, false)) == BRIDGE_OK, "as many words as fit");
  check(bridge::interpreter::load_kernels() == nullptr, "every kernel loads");
  check(run(column_sum()) == BRIDGE_INVALID_ARGUMENT && says("workspace"), "no workspace");
#endif
}

}  // namespace

int main(int argc, char** argv) {
  const int programs = argc > 1 ? std::atoi(argv[1]) : 120;
  if (argc > 2) random_bits.seed(static_cast<uint64_t>(std::atoll(argv[2])));
  run_random(programs);
  run_reductions();
  run_mutations(programs);
  run_large();
  run_tall();
  run_refusals();
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
