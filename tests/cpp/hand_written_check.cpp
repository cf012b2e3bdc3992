// Checks the kernels written by hand on the CPU. They take every call of their programs, and have
// the bits of the definition and of the interpreter: on every instruction set, for any scale,
// layout and number of threads, in place, and past the caches. They read no hidden element, and
// write nothing but results. Float32 is as accurate as docs/numerics.md says.
//
//   hand_written_check [calls of each program [seed]]
#include <bridge/bridge.h>
#include <math.h>
#include <stdlib.h>

#include "arena.h"
#include "generated/cpu/ahead_of_time.h"
#include "generated/cpu/programs.h"
#include "math/softmax.h"
#include "program_reference.h"
#include "random_call.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace {

using namespace bridge::random;  // NOLINT: the parts of a check
using Entry = bridge::interpreter::AheadOfTimeProgram;

int64_t calls_by_hand = 0;

bool is_jacobian(const Entry& entry) { return entry.free_count == 1; }

// Returns the bytecode of a program with the parameters of this scale.
std::vector<int32_t> with_scale(const Entry& entry, double scale) {
  double numbers[4] = {};
  const auto set = [&](auto precision) {
    using Precision = decltype(precision);
    const auto of = bridge::math::softmax_scale<Precision>(scale);
    numbers[0] = of.half, numbers[1] = of.rate, numbers[2] = of.rate_low, numbers[3] = of.floor;
    if (is_jacobian(entry))
      numbers[0] = bridge::math::softmax_derivative_scale<typename Precision::real>(scale);
  };
  if (entry.dtypes[0] == BRIDGE_FLOAT16) set(bridge::math::SingleForFloat16{});
  if (entry.dtypes[0] == BRIDGE_BFLOAT16) set(bridge::math::SingleForBfloat16{});
  if (entry.dtypes[0] == BRIDGE_FLOAT32) set(bridge::math::Single{});
  if (entry.dtypes[0] == BRIDGE_FLOAT64) set(bridge::math::Double{});
  std::vector<int32_t> words(entry.words, entry.words + entry.count);
  for (int64_t i = 0; i < entry.free_count; ++i)
    memcpy(&words[static_cast<size_t>(kHeaderWords + 2 * entry.free[i])], &numbers[i], 8);
  return words;
}

double any_scale() {
  static const double scales[] = {0.0,  -0.0, 1e-3,  -1.0, 1e-30, 1e-42,  -1e-60,
                                  1e30, 1e39, -1e40, 25.0, 1e300, -1e308, 1e-310};
  if (chance(50)) return 1.0;
  return chance(50) ? 0.125 * static_cast<double>(1 + pick(20)) : pick_from(scales);
}

// Few elements are hidden, most of them, long stretches, all or none. Any byte but 0 hides.
void fill_mask(std::vector<char>& bytes) {
  const int64_t kind = pick(5);
  bool is_hidden = kind == 3;
  for (char& byte : bytes) {
    if (kind < 2) is_hidden = chance(kind == 0 ? 10 : 90);
    if (kind == 2 && pick(90) == 0) is_hidden = !is_hidden;
    byte = static_cast<char>(!is_hidden ? 0 : chance(50) ? 1 : 1 + pick(255));
  }
}

// Runs a call on every instruction set and in every way, and compares all memory with the memory
// that the definition leaves.
void check_call(const Entry& entry, int64_t cols, int64_t most_elements) {
  const std::vector<int32_t> words = with_scale(entry, any_scale());
  const View view = view_of(words);
  std::vector<int32_t> dtypes(entry.dtypes, entry.dtypes + view.header.operands + 1);
  Arena arena;
  ProgramCall made;
  const bridge_program& call = made.call;
  for (int32_t i = 0; i < view.header.operands; ++i)
    if (view.operand_role(i) != Role::full) dtypes[i] = any_dtype(view.operand_role(i), false);
  choose_sizes(cols, most_elements, &made.call);
  make_arrays(
      words, view, true, [&](int64_t bytes) { return arena.allocate(bytes); }, &made,
      dtypes.data());
  auto before = arena.contents();
  for (int32_t i = 0; i < view.header.operands; ++i)
    if (view.operand_role(i) == Role::mask) fill_mask(before[static_cast<size_t>(i)]);
  arena.restore(before);
  bridge::reference::run(view, call);
  const auto expected = arena.contents();
  const Counts counts = counts_of(call);
  const bool is_in_place = made.text.find("in place") != std::string::npos;
  const bridge_executor pool = bridge_pool(3);
  for (int isa = 0; bridge_cpu_isas()[isa] != nullptr; ++isa) {
    if (bridge_set_cpu_isa(bridge_cpu_isas()[isa]) != BRIDGE_OK) continue;
    const auto check_run = [&](const std::string& how, const auto& run) {
      arena.restore(before);
      run();
      check(arena.contents() == expected, bridge_cpu_isas()[isa] + how + made.text);
    };
    const auto by_hand = [&](const bridge_executor* executor) {
      ++calls_by_hand;
      check(bridge_program_cpu(&call, executor) == BRIDGE_OK, bridge_last_error());
    };
    check_run(" by hand ", [&] { by_hand(nullptr); });
    if (most_elements > 65536) check_run(" in threads ", [&] { by_hand(&pool); });
    check_run(" interpreted ",
              [&] { run_on(interpreting_machine(isa, is_double(call)), view, call, nullptr); });
    if (is_in_place || counts.batches * counts.rows == 0) continue;
    check_run(" past the caches ",
              [&] { run_split(*entry.machine[isa], view, call, split_into(1, 0, nullptr), 1); });
  }
  bridge_set_cpu_isa(nullptr);
}

// Columns behind `last`, and rows that one byte of a mask hides, may lie in memory that cannot be
// read.
void check_unread([[maybe_unused]] const Entry& entry, [[maybe_unused]] int64_t cols) {
#if defined(__SANITIZE_ADDRESS__)
  const std::vector<int32_t> words = with_scale(entry, 1.0);
  const View view = view_of(words);
  const int64_t rows = 40;
  Arena arena;
  std::vector<int64_t> visible(rows, cols);
  std::vector<bridge_program_array> arrays;
  for (int32_t i = 0; i <= view.header.operands; ++i) {
    const bool is_full = i == view.header.operands || view.operand_role(i) == Role::full;
    const int32_t dtype = entry.dtypes[i];
    const int64_t width = is_full ? cols : 1;
    char* const data = arena.allocate(rows * width * bridge::element_bytes(dtype));
    arrays.push_back({data, dtype, 0, {width}, is_full});
    if (is_full) fill_reals(data, dtype, rows * cols);
    for (int64_t row = 0; row < rows && !is_full; ++row) {
      const int64_t last = pick(cols + 4) - 2;
      if (dtype == BRIDGE_INT64) memcpy(data + row * 8, &last, 8);
      if (dtype == BRIDGE_BOOL) data[row] = static_cast<char>(chance(30) ? 1 + pick(255) : 0);
      const int64_t seen = dtype == BRIDGE_INT64 ? last + 1 : data[row] != 0 ? 0 : cols;
      visible[row] = std::clamp<int64_t>(seen, 0, visible[row]);
    }
  }
  bridge_program call{};
  call.code = words.data(), call.words = static_cast<int64_t>(words.size());
  call.dims = 1, call.size[0] = rows, call.cols = call.index_cols = cols;
  call.operands = view.header.operands, call.results = 1;
  call.operand = arrays.data(), call.result = &arrays.back();
  bridge::reference::run(view, call);
  const auto expected = arena.contents();
  const auto for_hidden = [&](const auto& change) {
    for (int64_t i = 0; i < rows * call.operands; ++i) {
      const bridge_program_array& array = arrays[i / rows];
      if (array.col_stride == 0) continue;
      const int64_t bytes = bridge::element_bytes(array.dtype), seen = visible[i % rows];
      change(static_cast<char*>(array.data) + (i % rows * cols + seen) * bytes,
             static_cast<size_t>((cols - seen) * bytes));
    }
  };
  for (const char* const* isa = bridge_cpu_isas(); *isa != nullptr; ++isa) {
    if (bridge_set_cpu_isa(*isa) != BRIDGE_OK) continue;
    for_hidden([](char* data, size_t bytes) { __asan_poison_memory_region(data, bytes); });
    ++calls_by_hand;
    const bool ran = bridge_program_cpu(&call, nullptr) == BRIDGE_OK;
    for_hidden([](char* data, size_t bytes) { __asan_unpoison_memory_region(data, bytes); });
    check(ran && arena.contents() == expected, "hidden elements are not read");
  }
  bridge_set_cpu_isa(nullptr);
#endif
}

// Fills a row that rounds badly: random numbers, few different ones, whose errors do not average
// out, or sums by the bits of the column, so that all additions of a level round alike. One element
// may be much larger, so that every addition above it rounds.
void fill_hard_row(std::vector<float>& x, double spread) {
  std::normal_distribution<double> normal(0.0, spread);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  const int64_t kind = pick(3);
  const double largest = kind == 1 ? normal(random_bits) : 3 * spread + 10 * uniform(random_bits);
  const double other = largest - 14 * uniform(random_bits), noise = chance(50) ? 1e-6 : 0.0;
  double bits[12];
  for (double& bit : bits) bit = -spread / 6 * uniform(random_bits);
  for (size_t j = 0; j < x.size(); ++j) {
    double value = kind == 0 ? normal(random_bits) : 0.0;
    if (kind == 1) value = other - noise * uniform(random_bits);
    for (size_t i = 0; i < 12 && kind == 2; ++i) value += (j >> i & 1) != 0 ? bits[i] : 0.0;
    x[j] = static_cast<float>(value);
  }
  if (kind == 1 || chance(50)) x[pick(x.size())] = static_cast<float>(largest);
}

// Compares softmax of float32 with float64: the relative error of an element with
// (2 + |scale x - max|) 2^-23, and the sum of a row with 1 in units of 2^-23.
void check_accuracy(const Entry& entry) {
  double worst = 0, worst_sum = 0;
  for (int turn = 0; turn < 3000; ++turn) {
    static const double scales[] = {1.0, 0.125, -0.37, 1e4}, spreads[] = {0.1, 1.0, 8.0, 60.0};
    const double scale = pick_from(scales);
    std::vector<float> x(static_cast<size_t>(1 + pick(chance(50) ? 64 : 4096))), y(x);
    fill_hard_row(x, pick_from(spreads));
    for (float& each : x) each = static_cast<float>(each / scale);
    const std::vector<int32_t> words = with_scale(entry, scale);
    const bridge_program_array from{x.data(), BRIDGE_FLOAT32, 0, {}, 1};
    const bridge_program_array to{y.data(), BRIDGE_FLOAT32, 0, {}, 1};
    bridge_program call{};
    call.code = words.data(), call.words = static_cast<int64_t>(words.size());
    call.cols = call.index_cols = static_cast<int64_t>(x.size());
    call.operands = call.results = 1, call.operand = &from, call.result = &to;
    ++calls_by_hand;
    check(bridge_program_cpu(&call, nullptr) == BRIDGE_OK, "a call to measure");
    double largest = -INFINITY, total = 0, sum = 0;
    for (const float each : x) largest = std::max(largest, scale * each);
    for (const float each : x) total += exp(scale * each - largest);
    for (size_t j = 0; j < x.size(); ++j) {
      const double below = largest - scale * x[j], expected = exp(-below) / total;
      sum += y[j];
      if (expected < 0x1p-126) continue;  // denormal: its last place is larger
      worst = std::max(worst, fabs(y[j] - expected) / expected / ((2 + below) * 0x1p-23));
    }
    worst_sum = std::max(worst_sum, fabs(sum - 1) * 0x1p23);
  }
  printf(
      "float32: error at most %.3f of (2 + |scale x - max|) 2^-23, sums within %.3f units of 1\n",
      worst, worst_sum);
  check(worst <= 1, "elements are within (2 + |scale x - max|) 2^-23");
  check(worst_sum <= 4, "rows sum to 1 within 4 units");
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t calls = argc > 1 ? atoll(argv[1]) : 20;
  if (argc > 2) random_bits.seed(static_cast<uint64_t>(atoll(argv[2])));
  const auto all = bridge::interpreter::ahead_of_time_programs();
  for (int i = 0; i < all.count; ++i) {
    const Entry& entry = all.programs[i];
    if (entry.machine[0] == nullptr || !entry.machine[0]->has_whole_rows) continue;
    for (int64_t turn = 0; turn < calls; ++turn)
      check_call(entry, chance(50) ? pick(1100) : pick_from(kCols), 6000);
    check_call(entry, 1 + pick(3000), 100000);
    const bool has_only_mask = entry.dtypes[1] == BRIDGE_BOOL && entry.dtypes[2] != BRIDGE_INT64;
    if (has_only_mask) check_call(entry, 270001, 1);  // more than the powers that a buffer holds
    for (const int64_t cols : {5, 40, 200, 1500}) check_unread(entry, cols);
    const bool has_one_operand = !is_jacobian(entry) && entry.dtypes[1] == entry.dtypes[0];
    if (has_one_operand && entry.dtypes[0] == BRIDGE_FLOAT32) check_accuracy(entry);
  }
  check(calls_by_hand > 0 && bridge::interpreter::generated_calls() == calls_by_hand,
        "a call is not taken");
  printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
