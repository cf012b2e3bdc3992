// How fast bias_gelu runs on this CPU, beside a plain copy. Run by hand; no test depends on it.
//
//   bias_gelu_speed [threads [milliseconds for each line]]
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
  int32_t form, order, dtype;
  bool bias, full, sums;
  bool fresh = false;
  int64_t pad = 0;
  bool in_place = false;
  int32_t row_dtype = -1;
};

void time_case(const Case& c, const bridge_executor& executor) {
  const int64_t bytes = c.dtype == BRIDGE_FLOAT64 ? 8 : c.dtype == BRIDGE_FLOAT32 ? 4 : 2;
  const int32_t row_dtype = c.row_dtype < 0 ? c.dtype : c.row_dtype;
  const int64_t stride = c.cols + c.pad, count = c.rows * stride;
  std::vector<Pages> memory;
  memory.reserve(6);
  auto add = [&](int32_t dtype, int64_t elements) {
    memory.emplace_back(static_cast<size_t>(elements * 8));
    fill(memory.back().data(), dtype, elements);
    return memory.back().data();
  };
  bridge_bias_gelu call{};
  call.form = c.form;
  call.order = call.factors = c.order;
  call.batch = 1, call.rows = c.rows, call.cols = c.cols;
  call.input.full = {add(c.dtype, count), c.dtype, 0, stride};
  if (c.bias) call.input.row = {add(row_dtype, c.cols), row_dtype, 0, 0};
  for (int i = 0; i < c.order; ++i) call.factor[i].full = {add(c.dtype, count), c.dtype, 0, stride};
  if (c.sums) call.output.row = {add(row_dtype, c.cols), row_dtype, 0, 0};
  Pages output(static_cast<size_t>(count * bytes));
  if (c.full) call.output.full = {output.data(), c.dtype, 0, stride};
  if (c.in_place) call.output.full = call.input.full;
  if (!c.fresh) memset(output.data(), 1, static_cast<size_t>(count * bytes));
  auto renew = [&] {
    if (!c.fresh) return;
    output.renew();
    call.output.full.data = output.data();
  };
  bridge_status status = BRIDGE_OK;
  const double seconds = best_time(renew, [&] { status = bridge_bias_gelu_cpu(&call, &executor); });
  if (status != BRIDGE_OK) printf("%s\n", bridge_last_error());
  const double elements = static_cast<double>(c.rows) * static_cast<double>(c.cols);
  const double moved = elements * static_cast<double>(bytes) * (1 + c.order + (c.full ? 1 : 0));
  static const char* const dtypes[] = {"f16", "bf16", "f32", "f64"};
  static const char* const forms[] = {"tanh", "erf", "sigm"};
  printf("%-26s %8lld x %-8lld %-4s %-4s order %d: %9.1f us %7.2f Gelt/s %7.1f GB/s\n", c.name,
         static_cast<long long>(c.rows), static_cast<long long>(c.cols), forms[c.form],
         dtypes[c.dtype], c.order, seconds * 1e6, elements / seconds * 1e-9,
         moved / seconds * 1e-9);
  fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const bridge_executor executor = bridge_pool(argc > 1 ? atoi(argv[1]) : 2);
  if (argc > 2) budget = atof(argv[2]) * 1e-3;
  printf("%s, %d threads\n", bridge_cpu_isa(), executor.threads);
  constexpr int32_t tanh = BRIDGE_GELU_TANH, erf = BRIDGE_GELU_ERF;
  constexpr int32_t f16 = BRIDGE_FLOAT16, bf16 = BRIDGE_BFLOAT16, f32 = BRIDGE_FLOAT32,
                    f64 = BRIDGE_FLOAT64;
  for (int32_t form : {0, 1, 2})
    for (int32_t dtype : {f32, bf16, f16, f64})
      for (int order : {0, 1, 2})
        time_case({"in cache", 16, 1024, form, order, dtype, true, true, false}, executor);
  for (int32_t form : {tanh, erf})
    for (int32_t dtype : {f32, bf16})
      time_case({"in cache, sums", 128, 512, form, 1, dtype, true, true, true}, executor);
  time_case({"in cache, mixed", 16, 1024, tanh, 0, bf16, true, true, false, false, 0, false, f32},
            executor);
  time_case({"tiny", 1, 16, tanh, 0, f32, true, true, false}, executor);
  time_case({"tiny rows", 16384, 1, tanh, 0, f32, true, true, false}, executor);
  time_case({"tiny rows", 4096, 7, tanh, 0, f32, true, true, false}, executor);
  time_case({"tiny rows, sums", 16384, 1, tanh, 1, f32, true, true, true}, executor);
  time_case({"tiny rows, sums", 4096, 7, tanh, 1, f32, true, true, true}, executor);
  time_case({"tiny rows, padded", 4096, 7, tanh, 0, f32, true, true, false, false, 1}, executor);
  time_case({"odd rows", 512, 63, tanh, 0, f32, true, true, false, false, 1}, executor);
  time_case({"odd rows, sums", 512, 127, tanh, 1, f32, true, true, true}, executor);
  time_copy(int64_t{64} << 20, executor);
  for (int32_t form : {tanh, erf})
    for (int32_t dtype : {f32, bf16}) {
      time_case({"old memory", 4096, 4096, form, 0, dtype, true, true, false}, executor);
      time_case({"fresh memory", 4096, 4096, form, 0, dtype, true, true, false, true}, executor);
      time_case({"in place", 4096, 4096, form, 0, dtype, true, true, false, false, 0, true},
                executor);
      time_case({"old memory", 4096, 4096, form, 1, dtype, true, true, false}, executor);
      time_case({"old memory, sums", 4096, 4096, form, 1, dtype, true, true, true}, executor);
      time_case({"fresh memory, sums", 4096, 4096, form, 1, dtype, true, true, true, true},
                executor);
    }
  time_case({"only sums", 4096, 4096, tanh, 1, bf16, true, false, true}, executor);
  time_case({"tall, sums", 4194304, 4, tanh, 1, f32, true, true, true}, executor);
  time_case({"wide, sums", 8, 2097152, tanh, 1, f32, true, true, true}, executor);
  return 0;
}
