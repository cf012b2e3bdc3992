// bias_dropout_add of the CPU library against the definition, bit for bit: random calls over sizes,
// strides, dtypes, thresholds, places in the random sequence and in-place outputs, with every
// instruction set and several executors; then Philox against its published words, what is not read,
// and what the library refuses.
//
//   bias_dropout_add_check [calls [seed]]
#include <bridge/bridge.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <memory>
#include <string>
#include <vector>

#include "bias_dropout_add_reference.h"
#include "math/philox.h"
#include "random_arrays.h"

namespace {

using namespace bridge::random;
using bridge::reference::philox4x32_10;

// A call, and the integers that it reads.
struct DropoutCall : Arrays<bridge_bias_dropout_add> {
  std::vector<std::unique_ptr<int64_t[]>> integers;

  bridge_integers add_integers(int64_t (*value)()) {
    if (chance(10)) return {nullptr, 0};
    const int64_t stride = chance(30) ? 0 : chance(80) ? 1 : -1;
    const int64_t count = stride == 0 ? 1 : std::max<int64_t>(call.batch, 1);
    integers.emplace_back(new int64_t[static_cast<size_t>(count)]);
    for (int64_t i = 0; i < count; ++i) integers.back()[static_cast<size_t>(i)] = value();
    return {integers.back().get() + (stride < 0 ? count - 1 : 0), stride};
  }
};

int64_t any_integer() { return static_cast<int64_t>(random_bits()); }

// Near the places where 32 bits of the counter and 64 bits of the index end.
int64_t any_start() {
  static const uint64_t places[] = {0, 0, uint64_t{1} << 32, uint64_t{1} << 34, ~uint64_t{0}};
  const uint64_t place = places[pick(5)];
  if (chance(20)) return any_integer();
  return static_cast<int64_t>(place - (place == 0 ? 0 : random_bits() % 5000) + random_bits() % 40);
}

DropoutCall random_call(bool large) {
  static const int64_t some_rows[] = {0,  1,   2,   3,   15,  16,  17,  31,  33,  64,
                                      96, 127, 128, 129, 255, 257, 300, 513, 1100};
  static const int64_t some_cols[] = {0,   1,   2,   3,   4,   5,    7,    8,    15,   16,
                                      17,  31,  32,  33,  48,  63,   64,   65,   100,  127,
                                      200, 255, 257, 511, 512, 1000, 1025, 1500, 2100, 4099};
  DropoutCall made;
  bridge_bias_dropout_add& call = made.call;
  do {
    call.batch = chance(60) ? 1 : pick(4) + (chance(95) ? 1 : 0);
    call.rows = pick_from(some_rows);
    call.cols = pick_from(some_cols);
    if (large && chance(50)) call.rows *= 1 + pick(40);
    if (large && chance(30)) call.cols *= 1 + pick(200);
    if (!large && (call.rows == 0 || call.cols == 0 || call.batch == 0) && chance(90)) continue;
  } while (call.batch * call.rows * call.cols > (large ? 600000 : 20000) ||
           (large && call.batch * call.rows * call.cols < 140000));
  static const int64_t thresholds[] = {0,          1,          429496730,       int64_t{1} << 31,
                                       3865470566, 0xFFFFFFFF, int64_t{1} << 32};
  call.threshold = pick_from(thresholds);
  call.factor = call.threshold == 0
                    ? 1.0
                    : 4294967296.0 / (4294967296.5 - static_cast<double>(call.threshold));
  if (chance(10)) call.factor = -1e-40;
  call.index_cols = call.cols + (chance(50) ? 0 : pick(70));
  made.memory.reserve(8);
  made.text = "threshold " + std::to_string(call.threshold) + " [" + std::to_string(call.batch) +
              "," + std::to_string(call.rows) + "," + std::to_string(call.cols) + "] of " +
              std::to_string(call.index_cols);
  call.seed = made.add_integers(any_integer);
  call.offset = made.add_integers(any_integer);
  call.start = made.add_integers(any_start);
  const bool one_dtype = chance(60);
  const int32_t dtype = static_cast<int32_t>(pick(4));
  const int32_t row_dtype = chance(80) ? dtype : static_cast<int32_t>(pick(4));
  auto draw = [&](bool row) {
    return one_dtype ? (row ? row_dtype : dtype) : static_cast<int32_t>(pick(4));
  };
  call.input.full = made.add(draw(false), false, false);
  if (chance(60)) call.input.row = made.add(draw(true), true, false);
  if (chance(50)) call.residual = made.add(draw(false), false, false);
  const int64_t outputs = call.residual.data != nullptr ? 0 : pick(3);
  if (outputs != 1) {
    call.output.full = made.add(draw(false), false, true);
    // In place of a full input that has an output's layout.
    const bridge_array& source =
        call.residual.data != nullptr && chance(50) ? call.residual : call.input.full;
    if (chance(30) && source.row_stride >= std::max<int64_t>(call.cols, 1) &&
        source.batch_stride > 0 &&
        (call.batch == 1 || source.batch_stride >= call.rows * source.row_stride)) {
      call.output.full = source;
      made.text += " in place";
    }
  }
  if (outputs != 0) call.output.row = made.add(draw(true), true, true);
  return made;
}

void check_call(DropoutCall& made, const std::vector<bridge_executor>& executors) {
  check_bits(made, executors, bridge_bias_dropout_add_cpu,
             [](const bridge_bias_dropout_add& call) { bridge::reference::run(call); });
}

// The words that the authors of Philox publish for it (kat_vectors of Random123).
void check_known_answers() {
  struct Known {
    std::array<uint32_t, 4> counter;
    std::array<uint32_t, 2> key;
    std::array<uint32_t, 4> words;
  };
  constexpr uint32_t ones = 0xffffffffu;
  static const Known known[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{ones, ones, ones, ones}, {ones, ones}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
       {0xa4093822, 0x299f31d0},
       {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
  auto join = [](uint32_t low, uint32_t high) { return uint64_t{high} << 32 | low; };
  for (const Known& k : known) {
    check(philox4x32_10(k.counter, k.key) == k.words, "the reference gives the published words");
    const auto drawn =
        bridge::math::philox(join(k.key[0], k.key[1]), join(k.counter[2], k.counter[3]),
                             join(k.counter[0], k.counter[1]));
    for (size_t w = 0; w < 4; ++w)
      check(drawn.words[w] == k.words[w], "math/philox.h gives the published words");
  }
}

// A call on plain dense float arrays.
struct Plain {
  std::vector<float> input, residual, output;
  int64_t seed = 7;
  bridge_bias_dropout_add call{};
  Plain(int64_t rows, int64_t cols)
      : input(rows * cols, 1.0f), residual(rows * cols, 2.0f), output(rows * cols, -1.0f) {
    auto array = [&](std::vector<float>& v) {
      return bridge_array{v.data(), BRIDGE_FLOAT32, 0, cols};
    };
    call.batch = 1, call.rows = rows, call.cols = call.index_cols = cols;
    call.threshold = int64_t{1} << 31;
    call.factor = 2.0;
    call.seed = {&seed, 0};
    call.input.full = array(input);
    call.residual = array(residual);
    call.output.full = array(output);
  }
};

// The words themselves, by asking for each threshold's mask where it matters: an element whose word
// is w is kept at threshold w and dropped at w + 1.
void check_thresholds() {
  const int64_t count = 64;
  for (int64_t i = 0; i < count; ++i) {
    Plain plain(1, count);
    const int64_t word = bridge::reference::word_of(7, 0, static_cast<uint64_t>(i));
    plain.call.threshold = word;
    bridge_bias_dropout_add_cpu(&plain.call, nullptr);
    const bool kept = plain.output[static_cast<size_t>(i)] == 4.0f;
    plain.call.threshold = word + 1;
    bridge_bias_dropout_add_cpu(&plain.call, nullptr);
    check(kept && plain.output[static_cast<size_t>(i)] == 2.0f, "kept from its own word on");
  }
}

void check_unread() {
  Plain plain(3, 5);
  const std::vector<float> numbers = plain.input;
  plain.call.threshold = int64_t{1} << 32;
  plain.input.assign(plain.input.size(), NAN);
  check(bridge_bias_dropout_add_cpu(&plain.call, nullptr) == BRIDGE_OK &&
            plain.output == plain.residual,
        "nothing kept: the residual, whatever the input holds");
  plain.call.threshold = 0;
  plain.input = numbers;
  plain.call.input.full.data = plain.input.data();
  plain.call.seed.data = reinterpret_cast<const int64_t*>(8);  // no memory of ours
  check(bridge_bias_dropout_add_cpu(&plain.call, nullptr) == BRIDGE_OK && plain.output[0] == 3.0f,
        "everything kept: no seed is read");
}

void check_refusals() {
  auto refused = [](const char* what, auto&& spoil) {
    Plain plain(4, 8);
    spoil(plain.call);
    const bridge_status status = bridge_bias_dropout_add_cpu(&plain.call, nullptr);
    check(status == BRIDGE_INVALID_ARGUMENT && strstr(bridge_last_error(), what) != nullptr &&
              strstr(bridge_last_error(), "bias_dropout_add") != nullptr,
          std::string("refused: ") + what + ", said: " + bridge_last_error());
  };
  using Spoiled = bridge_bias_dropout_add;
  refused("threshold", [](Spoiled& call) { call.threshold = -1; });
  refused("threshold", [](Spoiled& call) { call.threshold = (int64_t{1} << 32) + 1; });
  refused("factor", [](Spoiled& call) { call.factor = INFINITY; });
  refused("factor", [](Spoiled& call) { call.factor = NAN; });
  refused("index_cols", [](Spoiled& call) { call.index_cols = 0; });
  refused("index_cols", [](Spoiled& call) { call.index_cols = 7; });
  refused("sizes", [](Spoiled& call) { call.rows = -1; });
  refused("63 bits", [](Spoiled& call) { call.rows = call.cols = int64_t{1} << 32; });
  refused("63 bits", [](Spoiled& call) { call.residual.row_stride = int64_t{1} << 61; });
  refused("seed", [](Spoiled& call) {
    call.seed.data =
        reinterpret_cast<const int64_t*>(reinterpret_cast<uintptr_t>(call.seed.data) + 4);
  });
  refused("offset has stride", [](Spoiled& call) {
    call.batch = 2;
    call.input.full.batch_stride = call.residual.batch_stride = 0;
    call.offset = {call.seed.data, INT64_MAX};
  });
  refused("start has stride", [](Spoiled& call) {
    call.batch = 4;
    call.start = {call.seed.data, INT64_MIN / 8};
  });
  refused("residual has dtype", [](Spoiled& call) { call.residual.dtype = 4; });
  refused("input.full is absent", [](Spoiled& call) { call.input.full.data = nullptr; });
  refused("outputs", [](Spoiled& call) { call.output.full.data = nullptr; });
  refused("output.row", [](Spoiled& call) { call.output.row = call.output.full; });
  refused("output.full has strides", [](Spoiled& call) { call.output.full.row_stride = 7; });
  refused("output.full overlaps residual", [](Spoiled& call) {
    call.output.full.data = static_cast<float*>(call.residual.data) + 1;
  });
  refused("output.full overlaps input.full", [](Spoiled& call) {
    call.output.full.data = static_cast<float*>(call.input.full.data) + 8;
  });
  check(bridge_bias_dropout_add_cpu(nullptr, nullptr) == BRIDGE_INVALID_ARGUMENT, "a null call");
}

}  // namespace

int main(int argc, char** argv) {
  const int calls = argc > 1 ? atoi(argv[1]) : 500;
  random_bits.seed(argc > 2 ? static_cast<uint64_t>(atoll(argv[2])) : 1);
  const bridge_executor none{nullptr, 1, nullptr};
  check_known_answers();
  for (int i = 0; i < calls; ++i) {
    DropoutCall call = random_call(false);
    check_call(call, {none});
  }
  for (int i = 0; i < calls / 25; ++i) {
    DropoutCall call = random_call(true);
    check_call(call, {none, bridge_pool(2), bridge_pool(3)});
  }
  check_thresholds();
  check_unread();
  check_refusals();
  printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
