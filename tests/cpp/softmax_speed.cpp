// Measures the speed of softmax and its derivative on this CPU, beside a plain copy of as many
// bytes. It is run by hand; no test depends on it.
//
//   softmax_speed [threads [milliseconds for each line [least columns [fresh]]]]
//
// With `fresh` every result goes to memory that has no pages yet, like a framework's results.
#include <bridge/bridge.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#include "timing.h"

namespace {

using namespace bridge::timing;

bool fresh = false;

struct Shape {
  int64_t batch, queries, cols;
};

enum Kind { kPlain, kMasked, kRowMask, kCausal };
const char* const kKinds[] = {"plain", "masked", "row-mask", "causal"};

class Case {
 public:
  Case(Shape shape, int32_t dtype) : shape_(shape), dtype_(dtype), bytes_(bytes_of(shape, dtype)) {
    const int64_t count = shape.batch * shape.queries * shape.cols;
    fill(x_.data(), dtype, count, 30), fill(g_.data(), dtype, count, 30);
    memset(y_.data(), 0, bytes_), memset(dx_.data(), 0, bytes_);
    // One mask for all batches, a fifth of it hidden.
    mask_.resize(static_cast<size_t>(shape.queries * shape.cols));
    for (size_t i = 0; i < mask_.size(); ++i) mask_[i] = (i * 2654435761u >> 16) % 5 == 0;
  }

  double forward(Kind kind, const bridge_executor& executor) {
    bridge_softmax call{};
    set_space(&call.space, kind);
    call.dtype = dtype_;
    call.scale = 0.125;
    call.x = rows(x_);
    if (kind == kMasked) {
      call.mask.data = mask_.data();
      call.mask.stride[1] = shape_.cols;
      call.mask.col_stride = 1;
    } else if (kind == kRowMask) {
      call.mask.data = mask_.data();
      call.mask.col_stride = 1;
    }
    return best_time([&] { renew(y_), call.output = rows(y_); },
                     [&] {
                       if (bridge_softmax_cpu(&call, &executor) != BRIDGE_OK) abort();
                     });
  }

  double backward(Kind kind, const bridge_executor& executor) {
    bridge_softmax_derivative call{};
    set_space(&call.space, kind);
    call.dtype = dtype_;
    call.terms = BRIDGE_SOFTMAX_PRODUCT | BRIDGE_SOFTMAX_U;
    call.scale = 0.125;
    call.u = rows(y_), call.v = rows(g_);
    return best_time([&] { renew(dx_), call.output = rows(dx_); },
                     [&] {
                       if (bridge_softmax_derivative_cpu(&call, &executor) != BRIDGE_OK) abort();
                     });
  }

  double copy() {
    return best_time([&] { renew(dx_); }, [&] { memcpy(dx_.data(), x_.data(), bytes_); });
  }

 private:
  static void renew(Pages& pages) {
    if (fresh) pages.renew();
  }
  void set_space(bridge_row_space* space, Kind kind) const {
    space->dims = 2;
    space->causal = kind == kCausal;
    space->size[0] = shape_.batch;
    space->size[1] = shape_.queries;
    space->cols = shape_.cols;
  }
  static size_t bytes_of(Shape shape, int32_t dtype) {
    return static_cast<size_t>(shape.batch * shape.queries * shape.cols) *
           (dtype == BRIDGE_FLOAT32 ? 4 : 2);
  }
  bridge_rows rows(const Pages& pages) const {
    bridge_rows rows{};
    rows.data = pages.data();
    rows.stride[0] = shape_.queries * shape_.cols;
    rows.stride[1] = shape_.cols;
    return rows;
  }

  Shape shape_;
  int32_t dtype_;
  size_t bytes_;
  Pages x_{bytes_}, y_{bytes_}, g_{bytes_}, dx_{bytes_};
  std::vector<uint8_t> mask_;
};

}  // namespace

int main(int argc, char** argv) {
  const bridge_executor executor = bridge_pool(argc > 1 ? atoi(argv[1]) : 1);
  if (argc > 2) budget = atof(argv[2]) * 1e-3;
  const int64_t from = argc > 3 ? atoll(argv[3]) : 0;
  fresh = argc > 4;
  const Shape shapes[] = {{1, 65536, 1},   {1, 16384, 8},  {1, 8192, 32},    {1, 4096, 64},
                          {32, 128, 128},  {4, 128, 129},  {384, 128, 128},  {1, 512, 512},
                          {128, 512, 512}, {1, 256, 1024}, {16, 2048, 2048}, {1, 16, 32768},
                          {64, 1, 32768},  {1, 8, 262144}, {1, 4, 1048576}};
  printf("%22s %9s", "Gelt/s", "");
  for (const char* kind : kKinds) printf(" %9s", kind);
  printf(" %9s %9s %9s\n", "backward", "causal b.", "copy");
  for (const Shape& shape : shapes) {
    if (shape.cols < from) continue;
    for (const int32_t dtype : {BRIDGE_FLOAT32, BRIDGE_BFLOAT16, BRIDGE_FLOAT16}) {
      if (dtype == BRIDGE_FLOAT16 && shape.cols != 512) continue;
      Case one(shape, dtype);
      const double count = static_cast<double>(shape.batch * shape.queries * shape.cols) * 1e-9;
      char name[64];
      snprintf(name, sizeof name, "[%d,%d,%d]", static_cast<int>(shape.batch),
               static_cast<int>(shape.queries), static_cast<int>(shape.cols));
      printf("%22s %9s", name,
             dtype == BRIDGE_FLOAT32    ? "float32"
             : dtype == BRIDGE_BFLOAT16 ? "bfloat16"
                                        : "float16");
      for (const Kind kind : {kPlain, kMasked, kRowMask, kCausal})
        printf(" %9.3f", count / one.forward(kind, executor));
      one.forward(kPlain, executor);
      printf(" %9.3f", count / one.backward(kPlain, executor));
      printf(" %9.3f", count / one.backward(kCausal, executor));
      printf(" %9.3f\n", count / one.copy());
      fflush(stdout);
    }
  }
}
