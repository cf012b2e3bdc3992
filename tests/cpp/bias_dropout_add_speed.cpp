// How fast bias_dropout_add runs on this CPU, beside a plain copy. Run by hand; no test depends on
// it.
//
//   bias_dropout_add_speed [threads [milliseconds for each line]]
#include <bridge/bridge.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

#include "timing.h"

namespace {

using namespace bridge::timing;

struct Case {
  const char* name;
  int64_t rows, cols;
  int32_t dtype;
  bool residual, full, sums;
  double p = 0.1;
  int64_t start = 0;
  bool fresh = false;
  int64_t pad = 0;
  int32_t residual_dtype = -1;
};

void time_case(const Case& c, const bridge_executor& executor) {
  const int32_t residual_dtype = c.residual_dtype < 0 ? c.dtype : c.residual_dtype;
  auto bytes_of = [](int32_t dtype) {
    return dtype == BRIDGE_FLOAT64 ? 8 : dtype == BRIDGE_FLOAT32 ? 4 : 2;
  };
  const int64_t stride = c.cols + c.pad, count = c.rows * stride;
  std::vector<Pages> memory;
  memory.reserve(4);
  auto add = [&](int32_t dtype, int64_t elements) {
    memory.emplace_back(static_cast<size_t>(elements * 8));
    fill(memory.back().data(), dtype, elements);
    return memory.back().data();
  };
  const int64_t integers[] = {1234, 0, c.start};
  bridge_bias_dropout_add call{};
  call.batch = 1, call.rows = c.rows, call.cols = c.cols;
  call.index_cols = c.cols;
  call.threshold = static_cast<int64_t>(c.p * 0x1p32);
  call.factor = c.p == 1 ? 0 : 1 / (1 - c.p);
  call.seed = {&integers[0], 0};
  call.offset = {&integers[1], 0};
  call.start = {&integers[2], 0};
  call.input.full = {add(c.dtype, count), c.dtype, 0, stride};
  if (!c.sums) call.input.row = {add(c.dtype, c.cols), c.dtype, 0, 0};
  if (c.residual) call.residual = {add(residual_dtype, count), residual_dtype, 0, stride};
  if (c.sums) call.output.row = {add(c.dtype, c.cols), c.dtype, 0, 0};
  const int32_t output_dtype = c.residual ? residual_dtype : c.dtype;
  const int64_t output_bytes = count * bytes_of(output_dtype);
  Pages output(static_cast<size_t>(output_bytes));
  if (c.full) call.output.full = {output.data(), output_dtype, 0, stride};
  if (!c.fresh) memset(output.data(), 1, static_cast<size_t>(output_bytes));
  auto renew = [&] {
    if (!c.fresh) return;
    output.renew();
    call.output.full.data = output.data();
  };
  bridge_status status = BRIDGE_OK;
  const double seconds =
      best_time(renew, [&] { status = bridge_bias_dropout_add_cpu(&call, &executor); });
  if (status != BRIDGE_OK) printf("%s\n", bridge_last_error());
  const double elements = static_cast<double>(c.rows) * static_cast<double>(c.cols);
  const double moved =
      elements * ((c.p < 1 ? bytes_of(c.dtype) : 0) + (c.residual ? bytes_of(residual_dtype) : 0) +
                  (c.full ? bytes_of(output_dtype) : 0));
  static const char* const dtypes[] = {"f16", "bf16", "f32", "f64"};
  printf("%-26s %8lld x %-8lld %-4s p %.1f: %9.1f us %7.2f Gelt/s %7.1f GB/s\n", c.name,
         static_cast<long long>(c.rows), static_cast<long long>(c.cols), dtypes[c.dtype], c.p,
         seconds * 1e6, elements / seconds * 1e-9, moved / seconds * 1e-9);
  fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const bridge_executor executor = bridge_pool(argc > 1 ? atoi(argv[1]) : 2);
  if (argc > 2) budget = atof(argv[2]) * 1e-3;
  printf("%s, %d threads\n", bridge_cpu_isa(), executor.threads);
  constexpr int32_t f16 = BRIDGE_FLOAT16, bf16 = BRIDGE_BFLOAT16, f32 = BRIDGE_FLOAT32,
                    f64 = BRIDGE_FLOAT64;
  for (int32_t dtype : {f32, bf16, f16, f64}) {
    time_case({"in cache", 16, 1024, dtype, true, true, false}, executor);
    time_case({"in cache, odd start", 16, 1024, dtype, true, true, false, 0.1, 3}, executor);
    time_case({"in cache, nothing drawn", 16, 1024, dtype, true, true, false, 0.0}, executor);
    time_case({"in cache, none kept", 16, 1024, dtype, true, true, false, 1.0}, executor);
    time_case({"in cache, backward", 16, 1024, dtype, false, true, false}, executor);
    time_case({"in cache, sums", 128, 512, dtype, false, true, true}, executor);
  }
  time_case({"in cache, mixed", 16, 1024, bf16, true, true, false, 0.1, 0, false, 0, f32},
            executor);
  time_case({"tiny", 1, 16, f32, true, true, false}, executor);
  time_case({"tiny rows", 16384, 1, f32, true, true, false}, executor);
  time_case({"tiny rows", 4096, 7, f32, true, true, false}, executor);
  time_case({"tiny rows, sums", 4096, 7, f32, false, true, true}, executor);
  time_case({"odd rows", 512, 63, f32, true, true, false}, executor);
  time_case({"odd rows", 512, 327, bf16, true, true, false}, executor);
  time_case({"odd rows, padded", 512, 63, f32, true, true, false, 0.1, 0, false, 1}, executor);
  time_case({"odd rows, sums", 512, 127, f32, false, true, true}, executor);
  time_copy(int64_t{64} << 20, executor);
  for (int32_t dtype : {f32, bf16}) {
    time_case({"old memory", 4096, 4096, dtype, true, true, false}, executor);
    time_case({"fresh memory", 4096, 4096, dtype, true, true, false, 0.1, 0, true}, executor);
    time_case({"old memory, backward", 4096, 4096, dtype, false, true, false}, executor);
    time_case({"old memory, sums", 4096, 4096, dtype, false, true, true}, executor);
    time_case({"fresh memory, sums", 4096, 4096, dtype, false, true, true, 0.1, 0, true}, executor);
  }
  return 0;
}
