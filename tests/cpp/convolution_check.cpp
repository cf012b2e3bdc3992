// Checks convolutions and their gradients against a plain evaluation of the definition: random
// sizes, strides, paddings, layouts, groups and dtypes, on every instruction set and several
// threads.
#include <bridge/convolution.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "convolution_reference.h"

namespace {

using convolution_test::Case;
using convolution_test::Limits;
using convolution_test::pick;

int failures = 0;

void check_one(const Case& given, const bridge_executor* executor, const char* isa) {
  const bridge_status status = bridge_convolution_cpu(&given.call, executor);
  if (status == BRIDGE_OK && given.result().memory == given.expected.memory) return;
  ++failures;
  std::printf("convolution_check: %s: %s, threads %d: %s\n", isa, given.words().c_str(),
              executor->threads, status == BRIDGE_OK ? "other bits" : bridge_last_error());
}

bridge_convolution smallest_call() {
  bridge_convolution call{};
  call.images = call.in_channels = call.out_channels = call.groups = 1;
  for (int d = 0; d < BRIDGE_CONVOLUTION_DIMS; ++d)
    call.in[d] = call.kernel[d] = call.out[d] = call.stride[d] = call.dilation[d] = 1;
  return call;
}

void check_refusals() {
  const auto refused = [](const bridge_convolution* given, const char* words) {
    const bridge_status status = bridge_convolution_cpu(given, nullptr);
    if (status == BRIDGE_INVALID_ARGUMENT && std::strstr(bridge_last_error(), words) != nullptr)
      return;
    ++failures;
    std::printf("convolution_check: not refused: %s\n", words);
  };
  refused(nullptr, "null");
  const auto changed = [&](const char* words, const auto& change) {
    bridge_convolution call = smallest_call();
    change(&call);
    refused(&call, words);
  };
  changed("kind", [](bridge_convolution* call) { call->kind = 3; });
  changed("negative", [](bridge_convolution* call) { call->images = -1; });
  changed("negative", [](bridge_convolution* call) { call->out[1] = -1; });
  changed("groups below 1", [](bridge_convolution* call) { call->groups = 0; });
  changed("do not divide", [](bridge_convolution* call) { call->groups = 2; });
  changed("stride below 1", [](bridge_convolution* call) { call->stride[2] = 0; });
  changed("dilation below 1", [](bridge_convolution* call) { call->dilation[0] = -1; });
  changed("too large", [](bridge_convolution* call) { call->padding[0] = int64_t{1} << 61; });
  changed("too large",
          [](bridge_convolution* call) { call->out[0] = call->stride[0] = int64_t{1} << 40; });
  changed("floating", [](bridge_convolution* call) { call->w.dtype = BRIDGE_INT32; });
  changed("tensor cores for", [](bridge_convolution* call) {
    call->tensor_cores = 1;
    call->w.dtype = BRIDGE_BFLOAT16;
  });
  changed("tensor cores on a CPU", [](bridge_convolution* call) { call->tensor_cores = 1; });
  alignas(8) static char memory[16] = {};
  changed("aligned", [](bridge_convolution* call) { call->x.data = memory + 1; });
  changed("a bias", [](bridge_convolution* call) {
    call->kind = BRIDGE_CONVOLUTION_WEIGHT;
    call->bias.data = memory;
  });
}

}  // namespace

int main(int count, char** arguments) {
  const int64_t rounds = count > 1 ? std::atoll(arguments[1]) : 40;
  product_test::random_words.seed(count > 2 ? std::strtoull(arguments[2], nullptr, 10) : 1);
  check_refusals();
  // Tiny; deep in channels; wide in channels of the result; many places.
  static const Limits limits[] = {
      {3, 5, 5, 9, 4}, {2, 300, 9, 5, 3}, {2, 24, 70, 8, 3}, {3, 9, 9, 40, 5}};
  for (const char* const* isa = bridge_cpu_isas(); *isa != nullptr; ++isa) {
    if (bridge_set_cpu_isa(*isa) != BRIDGE_OK) continue;
    for (int64_t i = 0; i < rounds; ++i) {
      const bridge_executor executor = bridge_pool(1 + static_cast<int32_t>(pick(3)));
      const auto kind = static_cast<int32_t>(i % 3);
      check_one(convolution_test::random_case(kind, limits[i / 3 % 4]), &executor, *isa);
    }
  }
  std::printf(failures == 0 ? "convolution_check: passed\n" : "convolution_check: %d failures\n",
              failures);
  return failures == 0 ? 0 : 1;
}
