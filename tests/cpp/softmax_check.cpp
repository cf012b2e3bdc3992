// Compares the CPU library's softmax and softmax_derivative with their definitions, bit for bit, on
// random calls: every instruction set, several numbers of threads, every byte of memory.
//
//   softmax_check [calls [seed]]
#include <bridge/bridge.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "softmax_reference.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace {

using bridge::reference::Memory;

int passed = 0, failed = 0;
bool call_is_tame = false;  // the current derivative has operands and a scale without extremes

void check(bool holds, const std::string& what) {
  ++(holds ? passed : failed);
  if (!holds && failed < 40) fprintf(stderr, "FAILED %s\n", what.c_str());
}

std::mt19937_64 random_bits;
int64_t pick(int64_t count) {
  return static_cast<int64_t>(random_bits() % static_cast<uint64_t>(count));
}
bool chance(int percent) { return pick(100) < percent; }
template <class T, size_t n>
T pick_from(const T (&values)[n]) {
  return values[pick(n)];
}

// Random values of a dtype; `special` percent of them special.
void fill(void* data, int32_t dtype, int64_t count, int special) {
  static const double values[] = {0.0,   -0.0, INFINITY, -INFINITY, NAN,   1e-40, -1e-40,
                                  65504, -7e4, 1e-320,   3e38,      -3e38, 1e300, -1e300};
  static const double harmless[] = {0.0, -0.0, -INFINITY, 1e-40, 90.0, -90.0};
  const bool wild = special > 2;
  std::normal_distribution<double> normal(0.0, 2.5);
  for (int64_t i = 0; i < count; ++i) {
    const double value = !chance(special) ? normal(random_bits)
                         : wild           ? pick_from(values)
                                          : pick_from(harmless);
    bridge::reference::store(data, dtype, i, value);
  }
}

const int64_t kCols[] = {0,    1,    2,    3,    5,    7,    8,    9,    15,   16,   17,   31,
                         32,   33,   48,   63,   64,   65,   100,  127,  128,  129,  200,  255,
                         256,  257,  300,  511,  512,  513,  600,  767,  768,  769,  1000, 1023,
                         1024, 1025, 1280, 1500, 2047, 2048, 2049, 3000, 3072, 4097, 5121};

// A call with the memory of its operands.
struct Made {
  std::vector<Memory> memory;
  std::string text;

  // Chooses strides for an operand with rows of `cols` elements, and allocates its memory. Rows of
  // outputs do not overlap; rows of inputs may be repeated or reversed.
  char* add(const bridge_row_space& space, int64_t cols, int64_t bytes, bool output,
            int64_t* stride, int64_t* count) {
    int order[BRIDGE_MAX_DIMS];
    for (int d = 0; d < space.dims; ++d) order[d] = d;
    const bool shuffled = chance(20);
    if (shuffled)
      for (int d = space.dims - 1; d > 0; --d) std::swap(order[d], order[pick(d + 1)]);
    int64_t span = cols, low = 0;
    const bool padded = chance(25);
    for (int at = space.dims - 1; at >= 0; --at) {
      const int d = order[at];
      stride[d] = span + (padded ? pick(5) : 0);
      if (!output && chance(8)) {
        stride[d] = 0;
        continue;
      }
      if (space.size[d] > 0) span += stride[d] * (space.size[d] - 1);
      if (!output && chance(5)) {
        stride[d] = -stride[d];
        low += stride[d] * (space.size[d] - 1);
      }
    }
    low = std::min<int64_t>(low, 0);
    const int64_t before = pick(3);
    *count = span + before + pick(3);
    memory.emplace_back(std::max<int64_t>(*count, 0) * bytes);
    text += std::string(output ? " out" : " in") + (shuffled ? " shuffled" : "") +
            (padded ? " padded" : "");
    return memory.back().data() + (before - low) * bytes;
  }

  bridge_rows add_rows(const bridge_row_space& space, int32_t dtype, bool output, int special) {
    bridge_rows rows{};
    int64_t count = 0;
    rows.data = add(space, space.cols, bridge::element_bytes(dtype), output, rows.stride, &count);
    if (!output) fill(memory.back().data(), dtype, count, special);
    return rows;
  }
};

bridge_row_space random_space(bool large) {
  bridge_row_space space{};
  int64_t elements;
  do {
    space.dims = static_cast<int32_t>(chance(5) ? 0 : chance(90) ? 1 + pick(4) : 1 + pick(8));
    elements = space.cols = pick_from(kCols);
    if (large && chance(25)) elements = space.cols = chance(50) ? 32768 : 9000 + pick(30000);
    for (int d = 0; d < space.dims; ++d) {
      space.size[d] = chance(25) ? 1 : 1 + pick(large ? 40 : 6);
      if (chance(2)) space.size[d] = 0;
      elements *= std::max<int64_t>(space.size[d], 1);  // memory is allocated even if a size is 0
    }
    space.causal = space.dims > 0 && chance(35);
    // Choose about as many queries as keys, so that the diagonal crosses the matrix.
    if (space.causal && space.cols > 0 && chance(60)) {
      const int last = space.dims - 1;
      elements /= std::max<int64_t>(space.size[last], 1);
      space.size[last] = std::max<int64_t>(1, space.cols + pick(7) - 3);
      elements *= space.size[last];
    }
  } while (elements > (large ? 700000 : 12000) || (large && elements < 140000));
  return space;
}

std::string describe(const bridge_row_space& space, int32_t dtype) {
  std::string text = "dtype " + std::to_string(dtype) + (space.causal ? " causal [" : " [");
  for (int d = 0; d < space.dims; ++d) text += std::to_string(space.size[d]) + ",";
  return text + std::to_string(space.cols) + "]";
}

int32_t pick_dtype() { return static_cast<int32_t>(pick(4)); }

// A space with one dimension of rows.
bridge_row_space rows_of(int64_t rows, int64_t cols) {
  bridge_row_space space{};
  space.dims = 1;
  space.size[0] = rows;
  space.cols = cols;
  return space;
}

double random_scale() {
  static const double scales[] = {0.0,  -0.0, 1e-3,  -1.0, 1e-30, 1e-42,  -1e-60,
                                  1e30, 1e39, -1e40, 25.0, 1e300, -1e308, 1e-310};
  return chance(50)   ? 1.0
         : chance(50) ? 0.125 * static_cast<double>(1 + pick(20))
                      : pick_from(scales);
}

struct SoftmaxCall : Made {
  bridge_softmax call{};

  explicit SoftmaxCall(bool large) : SoftmaxCall(random_space(large), pick_dtype()) {}
  SoftmaxCall(const bridge_row_space& given, int32_t dtype) {
    memory.reserve(8);
    bridge_row_space& space = call.space;
    space = given;
    call.dtype = dtype;
    call.scale = random_scale();
    text = describe(space, call.dtype) + " scale " + std::to_string(call.scale);
    call.x = add_rows(space, call.dtype, false, chance(60) ? 0 : chance(70) ? 2 : 12);
    if (chance(60)) add_mask();
    call.output = add_rows(space, call.dtype, true, 0);
    if (chance(20)) {
      call.x = call.output;
      fill(memory.back().data(), call.dtype,
           memory.back().size() / bridge::element_bytes(call.dtype), chance(50) ? 0 : 2);
      text += " in place";
    }
  }

  // Moves the operands of `part` to index `first` of dimension 0.
  static void advance(bridge_softmax& part, int64_t first) {
    part.x.data = static_cast<char*>(part.x.data) +
                  first * part.x.stride[0] * bridge::element_bytes(part.dtype);
    if (part.mask.data != nullptr) part.mask.data += first * part.mask.stride[0];
  }

  void add_mask() {
    const bridge_row_space& space = call.space;
    call.mask.col_stride = chance(80) ? 1 : 0;
    bridge_row_space own = space;  // without the dimensions that it repeats along
    for (int d = 0; d < space.dims; ++d)
      if (chance(40)) own.size[d] = std::min<int64_t>(own.size[d], 1);
    const int64_t cols = call.mask.col_stride == 0 ? 1 : space.cols;
    int64_t count = 0;
    uint8_t* const data =
        reinterpret_cast<uint8_t*>(add(own, cols, 1, false, call.mask.stride, &count));
    for (int d = 0; d < space.dims; ++d)
      if (own.size[d] != space.size[d]) call.mask.stride[d] = 0;
    call.mask.data = data;
    // Hide few elements, most of them, or long stretches, which are whole vectors; or all.
    const int64_t kind = pick(4);
    bool hidden = false;
    for (int64_t i = 0; i < count; ++i) {
      if (kind == 0) hidden = chance(10);
      if (kind == 1) hidden = chance(90);
      if (kind == 2 && pick(90) == 0) hidden = !hidden;
      if (kind == 3) hidden = true;
      memory.back().data()[i] = static_cast<char>(!hidden ? 0 : chance(50) ? 1 : 1 + pick(255));
    }
    text += " mask " + std::to_string(kind) + "/" + std::to_string(call.mask.col_stride);
  }
};

struct DerivativeCall : Made {
  bridge_softmax_derivative call{};

  explicit DerivativeCall(bool large) : DerivativeCall(random_space(large), pick_dtype()) {}
  DerivativeCall(const bridge_row_space& given, int32_t dtype) {
    memory.reserve(8);
    bridge_row_space& space = call.space;
    space = given;
    call.dtype = dtype;
    call.scale = random_scale();
    const bool with_w = chance(60);
    call.terms = with_w ? 1 + static_cast<int32_t>(pick(15)) : 3;
    text = "derivative " + std::to_string(call.terms) + " " + describe(space, call.dtype);
    const int special = chance(40) ? 2 : chance(50) ? 30 : 0;
    call_is_tame = special == 0 && fabs(call.scale) > 1e-4 && fabs(call.scale) < 1e4;
    bridge_rows* const rows[] = {&call.u, &call.v, &call.w};
    for (int i = 0; i < (with_w ? 3 : 2); ++i)
      *rows[i] = add_rows(space, call.dtype, false, special);
    call.output = add_rows(space, call.dtype, true, 0);
    if (chance(25)) {
      *rows[pick(with_w ? 3 : 2)] = call.output;
      fill(memory.back().data(), call.dtype,
           memory.back().size() / bridge::element_bytes(call.dtype), special);
      text += " in place";
    }
  }

  static void advance(bridge_softmax_derivative& part, int64_t first) {
    for (bridge_rows* rows : {&part.u, &part.v, &part.w})
      if (rows->data != nullptr)
        rows->data = static_cast<char*>(rows->data) +
                     first * rows->stride[0] * bridge::element_bytes(part.dtype);
  }
};

bridge_status run_cpu(const bridge_softmax& call, const bridge_executor* executor) {
  return bridge_softmax_cpu(&call, executor);
}
bridge_status run_cpu(const bridge_softmax_derivative& call, const bridge_executor* executor) {
  return bridge_softmax_derivative_cpu(&call, executor);
}

// The error of rounding to a dtype: relative to the value, and the absolute minimum.
struct Storage {
  long double rounding;
  long double least;
};
Storage storage_of(int32_t dtype) {
  if (dtype == BRIDGE_FLOAT16) return {0x1p-11L * 1.001L, 0x1p-25L * 1.001L};
  if (dtype == BRIDGE_BFLOAT16) return {0x1p-8L * 1.001L, 0x1p-133L};
  return {0, dtype == BRIDGE_FLOAT64 ? 0x1p-1074L : 0x1p-149L};
}

// Checks that the error is within the rounding of the result plus the error of the arithmetic.
void check_textbook(const bridge_softmax& call, const bridge_rows& result,
                    const std::string& text) {
  const long double unit = call.dtype == BRIDGE_FLOAT64 ? 0x1p-52L : 0x1p-23L;
  const Storage storage = storage_of(call.dtype);
  const double size = fabs(call.scale);
  if (size > 1e37 || (size < 1e-37 && size > 0)) return;  // the scale itself is at a limit
  const std::string wrong = bridge::reference::compare_with_textbook(
      call, result, [&](long double value, long double distance) {
        return value * (storage.rounding + (6 + distance) * unit) + storage.least;
      });
  check(wrong.empty(), "textbook: " + text + ": " + wrong);
}

void check_textbook(const bridge_softmax_derivative& call, const bridge_rows& result,
                    const std::string& text) {
  if (!call_is_tame) return;
  const bool wide = call.dtype == BRIDGE_FLOAT64;
  const Storage storage = storage_of(call.dtype);
  const long double distance = bridge::reference::derivative_distance(
      call, result, 16 * (wide ? 0x1p-53L : 0x1p-24L), storage.rounding, storage.least);
  check(distance <= 1, "textbook: " + text + ": " + std::to_string(static_cast<double>(distance)));
}

// Runs the call with each instruction set and executor. Compares all memory, including the bytes
// around the output, with the definition's.
template <class Made>
void check_call(Made& made, const std::vector<bridge_executor>& executors) {
  const std::vector<Memory> before = made.memory;
  bridge::reference::run(made.call);
  std::vector<Memory> expected = made.memory;
  for (const char* const* isa = bridge_cpu_isas(); *isa != nullptr; ++isa) {
    if (bridge_set_cpu_isa(*isa) != BRIDGE_OK) continue;
    for (const bridge_executor& executor : executors) {
      for (size_t i = 0; i < before.size(); ++i) made.memory[i].assign_from(before[i]);
      const bridge_status status = run_cpu(made.call, &executor);
      bool same = status == BRIDGE_OK;
      for (size_t i = 0; i < expected.size(); ++i) same = same && made.memory[i] == expected[i];
      check(same, std::string(*isa) + ", " + std::to_string(executor.threads) +
                      " threads: " + made.text + (status == BRIDGE_OK ? "" : bridge_last_error()));
    }
  }
  bridge_set_cpu_isa(nullptr);
  // Restores the inputs beside the result, because an output in place has overwritten one.
  const bridge_rows output = made.call.output;
  std::vector<Memory> result = made.memory;
  for (size_t i = 0; i < before.size(); ++i) made.memory[i].assign_from(before[i]);
  bridge_rows apart = output;
  apart.data = result.back().data() + (static_cast<char*>(output.data) - made.memory.back().data());
  check_textbook(made.call, apart, made.text);
}

// A large output that has been written before is written past the caches. It must have the same
// bits as its parts, which are not.
template <class Made>
void check_streamed(int32_t dtype) {
  const int64_t heads = dtype == BRIDGE_FLOAT64 ? 2 : 4, rows = 1111;
  const int64_t cols = dtype <= BRIDGE_BFLOAT16 ? 3801 : 1901;  // rows start anywhere in a line
  bridge_row_space space{};
  space.dims = 2, space.size[0] = heads, space.size[1] = rows, space.cols = cols;
  Made made(space, dtype);
  auto call = made.call;
  const int64_t bytes = bridge::element_bytes(dtype);
  Memory whole(heads * rows * cols * bytes), parts(heads * rows * cols * bytes);
  check(whole.size() >= int64_t{32} << 20, "a large output");
  for (const bool causal : {false, true}) {
    space.causal = causal;
    call.output.stride[0] = rows * cols, call.output.stride[1] = cols;
    for (const char* const* isa = bridge_cpu_isas(); *isa != nullptr; ++isa) {
      if (bridge_set_cpu_isa(*isa) != BRIDGE_OK) continue;
      const bridge_executor pool = bridge_pool(2);
      memset(whole.data(), 1, static_cast<size_t>(whole.size()));
      call.space = space;
      call.output.data = whole.data();
      check(run_cpu(call, &pool) == BRIDGE_OK, "a streamed call");
      call.space.size[0] = 1;
      for (int64_t head = 0; head < heads; ++head) {
        auto part = call;
        made.advance(part, head);
        part.output.data = parts.data() + head * rows * cols * bytes;
        check(run_cpu(part, &pool) == BRIDGE_OK, "a part");
      }
      check(whole == parts, std::string(*isa) + " streamed " + made.text);
    }
    bridge_set_cpu_isa(nullptr);
  }
}

// Rows of more than 65,536 columns, and rows longer than any buffer.
void check_long_rows() {
  for (const int64_t cols : {int64_t{65537}, (int64_t{1} << 20) + 33})
    for (const int32_t dtype : {BRIDGE_FLOAT32, BRIDGE_BFLOAT16}) {
      SoftmaxCall call(rows_of(2, cols), dtype);
      check_call(call, {bridge_pool(2)});
      DerivativeCall derivative(rows_of(2, cols), dtype);
      check_call(derivative, {bridge_pool(2)});
    }
}

// Every row length around the boundaries of the tree, dense, with and without a mask.
void check_every_length() {
  for (int64_t cols = 1; cols <= 1100; ++cols) {
    SoftmaxCall call(rows_of(3, cols), static_cast<int32_t>(cols % 4));
    check_call(call, {bridge_executor{nullptr, 1, nullptr}});
    DerivativeCall derivative(rows_of(3, cols), static_cast<int32_t>(cols % 4));
    check_call(derivative, {bridge_executor{nullptr, 1, nullptr}});
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int calls = argc > 1 ? atoi(argv[1]) : 500;
  random_bits.seed(argc > 2 ? static_cast<uint64_t>(atoll(argv[2])) : 1);
  const bridge_executor none{nullptr, 1, nullptr};
  for (int i = 0; i < calls; ++i) {
    SoftmaxCall call(false);
    check_call(call, {none});
    DerivativeCall derivative(false);
    check_call(derivative, {none});
  }
  for (int i = 0; i < calls / 50; ++i) {
    SoftmaxCall call(true);
    check_call(call, {none, bridge_pool(2), bridge_pool(3)});
    DerivativeCall derivative(true);
    check_call(derivative, {none, bridge_pool(2), bridge_pool(3)});
  }
  check_every_length();
  check_long_rows();
  for (const int32_t dtype : {BRIDGE_FLOAT16, BRIDGE_FLOAT32}) {
    check_streamed<SoftmaxCall>(dtype);
    check_streamed<DerivativeCall>(dtype);
  }
  printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
