// Checks the promises of softmax and its derivative besides their bits: rejected calls and their
// messages, elements that are never read, the accuracy of float32, and independence of the caller's
// floating-point mode, which is restored.
#include <bridge/bridge.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace {

int passed = 0, failed = 0;

void check(bool holds, const std::string& what) {
  ++(holds ? passed : failed);
  if (!holds) fprintf(stderr, "FAILED %s\n", what.c_str());
}

// A dense float32 call.
struct Forward {
  std::vector<float> x, y;
  std::vector<uint8_t> mask;
  bridge_softmax call{};

  Forward(int64_t batch, int64_t rows, int64_t cols)
      : x(static_cast<size_t>(batch * rows * cols)), y(x.size()), mask(x.size()) {
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 97) * 0.1f - 5.0f;
    call.space.dims = 2;
    call.space.size[0] = batch, call.space.size[1] = rows, call.space.cols = cols;
    call.dtype = BRIDGE_FLOAT32;
    call.scale = 1;
    call.x = rows_at(x.data()), call.output = rows_at(y.data());
  }
  bridge_rows rows_at(float* data) const {
    bridge_rows made{};
    made.data = data;
    made.stride[0] = call.space.size[1] * call.space.cols, made.stride[1] = call.space.cols;
    return made;
  }
  void use_mask() {
    call.mask.data = mask.data();
    memcpy(call.mask.stride, call.x.stride, sizeof call.mask.stride);
    call.mask.col_stride = 1;
  }
  bridge_status run() {
    const bridge_executor pool = bridge_pool(2);
    return bridge_softmax_cpu(&call, &pool);
  }
};

struct Backward : Forward {
  std::vector<float> v, w, out;
  bridge_softmax_derivative call{};

  Backward(int64_t batch, int64_t rows, int64_t cols)
      : Forward(batch, rows, cols), v(x), w(x), out(x.size()) {
    call.space = Forward::call.space;
    call.dtype = BRIDGE_FLOAT32;
    call.terms = BRIDGE_SOFTMAX_PRODUCT | BRIDGE_SOFTMAX_U;
    call.scale = 1;
    call.u = rows_at(x.data()), call.v = rows_at(v.data()), call.output = rows_at(out.data());
  }
  bridge_status run() {
    const bridge_executor pool = bridge_pool(2);
    return bridge_softmax_derivative_cpu(&call, &pool);
  }
};

template <class Made, class Spoil>
void refused(const char* what, const Spoil& spoil) {
  Made made(2, 3, 40);
  spoil(made);
  const bridge_status status = made.run();
  check(status == BRIDGE_INVALID_ARGUMENT && strstr(bridge_last_error(), what) != nullptr,
        std::string("refused: ") + what + ", said: " + bridge_last_error());
}

template <class Made>
void check_refusals_of_both() {
  refused<Made>("dims is -1", [](Made& made) { made.call.space.dims = -1; });
  refused<Made>("dims is 9", [](Made& made) { made.call.space.dims = 9; });
  refused<Made>("causal", [](Made& made) { made.call.space.dims = 0, made.call.space.causal = 1; });
  refused<Made>("cols is -1", [](Made& made) { made.call.space.cols = -1; });
  refused<Made>("size[1] is -5", [](Made& made) { made.call.space.size[1] = -5; });
  refused<Made>("63 bits", [](Made& made) {
    made.call.space.size[0] = made.call.space.size[1] = int64_t{1} << 32;
  });
  refused<Made>("dtype is 4", [](Made& made) { made.call.dtype = 4; });
  refused<Made>("dtype is -1", [](Made& made) { made.call.dtype = -1; });
  refused<Made>("scale is inf", [](Made& made) { made.call.scale = INFINITY; });
  refused<Made>("scale is", [](Made& made) { made.call.scale = NAN; });
  refused<Made>("output is absent", [](Made& made) { made.call.output.data = nullptr; });
  refused<Made>("output is at", [](Made& made) {
    made.call.output.data = static_cast<char*>(made.call.output.data) + 2;
  });
  refused<Made>("output has strides", [](Made& made) { made.call.output.stride[1] = 39; });
  refused<Made>("output has strides", [](Made& made) { made.call.output.stride[0] = 0; });
  refused<Made>("63 bits", [](Made& made) { made.call.output.stride[0] = int64_t{1} << 61; });
  refused<Made>("63 bits", [](Made& made) { made.call.output.stride[0] = INT64_MIN; });

  Made nothing(2, 3, 40);
  nothing.call.space.size[0] = 0;
  nothing.call.space.size[1] = int64_t{1} << 62;
  nothing.call.output.data = nullptr;
  check(nothing.run() == BRIDGE_OK, "a call of no elements may carry null pointers");
}

void check_refusals() {
  check_refusals_of_both<Forward>();
  check_refusals_of_both<Backward>();
  refused<Forward>("x is absent", [](Forward& made) { made.call.x.data = nullptr; });
  refused<Forward>("mask.col_stride is 2",
                   [](Forward& made) { made.use_mask(), made.call.mask.col_stride = 2; });
  refused<Forward>("output overlaps x",
                   [](Forward& made) { made.call.output.data = made.x.data() + 40; });
  refused<Forward>("output overlaps mask", [](Forward& made) {
    made.use_mask();
    made.call.mask.data = reinterpret_cast<uint8_t*>(made.y.data());
  });
  refused<Backward>("u is absent", [](Backward& made) { made.call.u.data = nullptr; });
  refused<Backward>("v is absent", [](Backward& made) { made.call.v.data = nullptr; });
  refused<Backward>("w is absent", [](Backward& made) { made.call.terms = 7; });
  refused<Backward>("terms is 0", [](Backward& made) { made.call.terms = 0; });
  refused<Backward>("terms is 16", [](Backward& made) { made.call.terms = 16; });
  refused<Backward>("terms is -1", [](Backward& made) { made.call.terms = -1; });
  refused<Backward>("output overlaps v",
                    [](Backward& made) { made.call.output.data = made.v.data() + 1; });
  refused<Backward>("output overlaps w", [](Backward& made) {
    made.call.w = made.call.v;
    made.call.w.data = made.w.data();
    made.call.output.data = made.w.data() + 80;
  });
  check(bridge_softmax_cpu(nullptr, nullptr) == BRIDGE_INVALID_ARGUMENT &&
            bridge_softmax_derivative_cpu(nullptr, nullptr) == BRIDGE_INVALID_ARGUMENT,
        "a null call");
}

// Elements hidden by the causal rule and rows hidden by a mask are not read.
void check_unread() {
#if defined(__SANITIZE_ADDRESS__)
  for (const int64_t cols : {int64_t{5}, int64_t{40}, int64_t{200}, int64_t{1500}}) {
    Backward causal(1, cols, cols);
    causal.Forward::call.space.causal = causal.call.space.causal = 1;
    auto hide = [&](auto poison) {
      for (int64_t row = 0; row < cols; ++row)
        for (std::vector<float>* array : {&causal.x, &causal.v})
          poison(array->data() + row * cols + row + 1,
                 static_cast<size_t>(cols - row - 1) * sizeof(float));
    };
    hide([](float* data, size_t bytes) { __asan_poison_memory_region(data, bytes); });
    const bool ran = causal.Forward::run() == BRIDGE_OK && causal.run() == BRIDGE_OK;
    hide([](float* data, size_t bytes) { __asan_unpoison_memory_region(data, bytes); });
    check(ran, "hidden elements are not read");

    Forward hidden(1, 4, cols);
    const uint8_t rows[4] = {0, 255, 1, 0};
    hidden.call.mask.data = rows;
    hidden.call.mask.stride[1] = 1;
    float* const poisoned = hidden.x.data() + cols;
    __asan_poison_memory_region(poisoned, static_cast<size_t>(2 * cols) * sizeof(float));
    const bool done = hidden.run() == BRIDGE_OK;
    __asan_unpoison_memory_region(poisoned, static_cast<size_t>(2 * cols) * sizeof(float));
    check(done && std::all_of(&hidden.y[static_cast<size_t>(cols)],
                              &hidden.y[static_cast<size_t>(3 * cols)],
                              [](float value) { return value == 0; }),
          "a hidden row is not read");
  }
#endif
}

// Rows of every difficult kind: random ones of any spread; one large element among many small ones
// (every addition above it in the tree rounds); few different values, whose errors do not average
// out; and values determined by the bits of the column, so that all additions of a level round
// alike.
void fill_hard_row(std::mt19937& random, int kind, float spread, float* x, int64_t cols) {
  std::normal_distribution<float> normal(0.0f, spread);
  std::uniform_real_distribution<float> uniform(0.0f, 1.0f);
  const auto column = [&] { return static_cast<int64_t>(uniform(random) * 0.999f * cols); };
  if (kind <= 1) {
    for (int64_t j = 0; j < cols; ++j) x[j] = normal(random);
    if (kind == 1) x[column()] = 3 * spread + 10 * uniform(random);
  } else if (kind <= 3) {
    const float largest = normal(random), other = largest - 14 * uniform(random);
    for (int64_t j = 0; j < cols; ++j) x[j] = other;
    x[column()] = largest;
    if (kind == 3)
      for (int64_t j = 0; j < cols; ++j) x[j] -= 1e-6f * uniform(random);
  } else {
    float bit[12];
    for (float& value : bit) value = -2 * spread * uniform(random) / 12;
    for (int64_t j = 0; j < cols; ++j) {
      x[j] = 0;
      for (int i = 0; i < 12; ++i) x[j] += (j >> i & 1) != 0 ? bit[i] : 0;
    }
    if (kind == 5) x[column()] = 9 * uniform(random);
  }
}

// float32: compares the relative error of an element with (2 + |scale x - max|) 2^-23, and the
// row's sum with 1 in ULP, for rows of up to 4096 columns.
void check_accuracy() {
  std::mt19937 random(7);
  double worst = 0, worst_sum = 0;
  for (int64_t cols = 1; cols <= 4096;
       cols = cols == 4096 ? 4097 : std::min<int64_t>(4096, cols + 1 + cols / 3))
    for (const float spread : {0.1f, 1.0f, 8.0f, 60.0f})
      for (const double scale : {1.0, 0.125, -0.37, 1e4}) {
        constexpr int64_t rows = 12;
        Forward made(1, rows, cols);
        for (int64_t row = 0; row < rows; ++row) {
          float* const x = made.x.data() + row * cols;
          fill_hard_row(random, static_cast<int>(row % 6), spread, x, cols);
          for (int64_t j = 0; j < cols; ++j) x[j] = static_cast<float>(x[j] / scale);
        }
        made.call.scale = scale;
        check(made.run() == BRIDGE_OK, "a call to measure");
        for (int64_t row = 0; row < rows; ++row) {
          const float *x = made.x.data() + row * cols, *y = made.y.data() + row * cols;
          long double largest = -INFINITY, total = 0, sum = 0;
          std::vector<long double> power(static_cast<size_t>(cols));
          for (int64_t j = 0; j < cols; ++j)
            largest = std::max<long double>(largest, static_cast<long double>(scale) * x[j]);
          for (int64_t j = 0; j < cols; ++j) {
            power[static_cast<size_t>(j)] = expl(static_cast<long double>(scale) * x[j] - largest);
            total += power[static_cast<size_t>(j)];
          }
          for (int64_t j = 0; j < cols; ++j) {
            const long double distance = largest - static_cast<long double>(scale) * x[j];
            const long double expected = power[static_cast<size_t>(j)] / total;
            sum += y[j];
            if (expected < 0x1p-126L) continue;  // denormals have a last place of their own
            const double error = static_cast<double>(fabsl(y[j] - expected) / expected /
                                                     ((2 + distance) * 0x1p-23L));
            worst = std::max(worst, error);
          }
          worst_sum = std::max(worst_sum, static_cast<double>(fabsl(sum - 1) * 0x1p23L));
        }
      }
  printf("float32: error at most %.3f of (2 + |scale x - max|) 2^-23, sums within %.3f ULP of 1\n",
         worst, worst_sum);
  check(worst <= 1, "elements are within (2 + |scale x - max|) 2^-23");
  check(worst_sum <= 4, "rows sum to 1 within 4 ULP");
}

void check_float_environment() {
#if defined(__x86_64__)
  for (const int64_t rows : {3, 700}) {
    Backward made(2, rows, 100);
    for (float& v : made.v) v *= 1e-39f;
    for (float& x : made.x) x *= 20.0f;
    check(made.Forward::run() == BRIDGE_OK && made.run() == BRIDGE_OK, "a plain call");
    const std::vector<float> y = made.y, out = made.out;
    const unsigned saved = _mm_getcsr(), flushing = 0x9fe2;
    _mm_setcsr(flushing);
    const bool ran = made.Forward::run() == BRIDGE_OK && made.run() == BRIDGE_OK;
    const unsigned left = _mm_getcsr();
    _mm_setcsr(saved);
    check(ran && left == flushing, "the caller's MXCSR comes back");
    check(memcmp(y.data(), made.y.data(), y.size() * sizeof(float)) == 0 &&
              memcmp(out.data(), made.out.data(), out.size() * sizeof(float)) == 0,
          "flush-to-zero on entry changes no bit");
  }
#endif
}

}  // namespace

int main() {
  check_refusals();
  check_unread();
  check_accuracy();
  check_float_environment();
  printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
