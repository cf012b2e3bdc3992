// Runs matrix products on the emulator or a GPU and compares them with a plain evaluation, and with
// the CPU kernels.
#include <bridge/bridge.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "executor.h"
#include "tensor_core_turn.h"
#ifndef BRIDGE_EXECUTOR_GPU
#include "tensor_core_emulator.h"
#endif

namespace {

using namespace bridge;  // NOLINT
using product_test::Array;
using product_test::pick;

int passed = 0;
int failed = 0;

void check(bool holds, const std::string& what) {
  ++(holds ? passed : failed);
  if (!holds) std::printf("FAILED: %s\n", what.c_str());
}

// The memory of an array where kernels reach it, and the array there.
struct Placed {
  executor::Memory memory;
  bridge_product_array array;

  explicit Placed(const Array& from) : memory(executor::allocate(from.memory.size())) {
    std::memcpy(memory.get(), from.memory.data(), from.memory.size());
    array = from.array;
    array.data = memory.get() + (static_cast<const char*>(from.array.data) - from.memory.data());
  }
};

// Runs a call in `given`; its result is in c.
void check_case(const product_test::Case& given, const Placed& c) {
  bridge_product call = given.call;
  const Placed a(given.a), b(given.b), bias(given.bias);
  call.a = a.array, call.b = b.array, call.c = c.array;
  if (call.bias.data != nullptr) call.bias = bias.array;
  const size_t least = bridge_product_cuda_least_workspace(&call);
  const size_t most = bridge_product_cuda_workspace(&call);
  const size_t bytes = pick(2) == 0 ? least : most;
  check(least <= most, given.words() + ": the least workspace is the larger");
  const executor::Memory workspace = executor::allocate(bytes);
  executor::next_order();
  const bridge_product there = executor::placed(call);
  const bridge_status status =
      bridge_product_cuda(&there, executor::placed(workspace), bytes, nullptr);
  const std::string failure = executor::finish();
  if (status != BRIDGE_OK || !failure.empty())
    return check(false, given.words() + ": " + bridge_cuda_last_error() + failure);
  check(
      std::memcmp(c.memory.get(), given.expected.memory.data(), given.expected.memory.size()) == 0,
      given.words() + ": other bits");
}

void check_one(int64_t m, int64_t n, int64_t k) {
  const product_test::Case given = product_test::random_case(m, n, k);
  check_case(given, Placed(given.c));
}

using tensor_core_test::Model;
using tensor_core_test::next_model;

// `spread`: of the exponents of operands.
void check_on_tensor_cores(int64_t m, int64_t n, int64_t k, int64_t spread) {
  product_test::Case given = product_test::random_operands(m, n, k, true);
  auto& [call, a, b, bias, c, expected] = given;
  for (Array* const each : {&a, &b}) {
    for (size_t at = 0; at + 2 <= each->memory.size() && spread > 0; at += 2) {
      char* const element = each->memory.data() + at;
      const int exponent = static_cast<int>(pick(spread) - spread / 2);
      product_test::put(element, each->array.dtype,
                        std::ldexp(product_test::get(element, each->array.dtype), exponent));
    }
  }
  const int least = a.array.dtype == BRIDGE_FLOAT16 ? -14 : -126;
  const Model model = next_model();
  product_test::expected_of<float>(call, a, b, bias, tensor_core_test::MmaChain{model, least},
                                   &expected);
  const Placed made(c);
  check_case(given, made);
  if (c.array.dtype != BRIDGE_FLOAT32 || call.bias.data != nullptr || call.dims > 0 || spread > 0)
    return;
  const double levels = std::ceil(std::log2(std::max<double>(static_cast<double>(k) / 256, 1)));
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double exact = 0, size = 0;
      for (int64_t p = 0; p < k; ++p) {
        const double term = product_test::get(a.at(0, i, p), a.array.dtype) *
                            product_test::get(b.at(0, p, j), b.array.dtype);
        exact += term, size += std::abs(term);
      }
      if (!std::isfinite(exact) || size > 1e30) continue;
      const char* const at = made.memory.get() + (c.at(0, i, j) - c.memory.data());
      const double error = std::abs(product_test::get(at, BRIDGE_FLOAT32) - exact);
      check(error <= (model.leaf_error() + levels) * std::ldexp(size, -24),
            given.words() + ": a large error");
    }
  }
}

void check_refusals() {
  bridge_product call{};
  call.m = call.n = 1, call.k = 300;
  const auto refused = [](const bridge_product* given, const char* words) {
    const bridge_status status = bridge_product_cuda(given, nullptr, 0, nullptr);
    check(status == BRIDGE_INVALID_ARGUMENT &&
              std::strstr(bridge_cuda_last_error(), words) != nullptr,
          std::string("not refused: ") + words);
  };
  refused(nullptr, "null");
  check(bridge_product_cuda_workspace(nullptr) == 0, "no call needs no workspace");
  refused(&call, "workspace");
  call.m = -1;
  refused(&call, "negative");
  call.m = 1;
  call.tensor_cores = 1;
  call.a.dtype = call.b.dtype = BRIDGE_FLOAT32;
  refused(&call, "tensor cores for others");
  call.a.dtype = BRIDGE_FLOAT16, call.b.dtype = BRIDGE_BFLOAT16;
  refused(&call, "tensor cores for others");
  call.b.dtype = BRIDGE_FLOAT16, call.c.dtype = BRIDGE_FLOAT64;
  refused(&call, "tensor cores for others");
  call.c.dtype = BRIDGE_FLOAT32, call.skips_zeros = 1;
  refused(&call, "absent terms");
}

void check_random_sizes(int rounds) {
  static const int64_t sizes[] = {0, 1, 2, 4, 7, 8, 16, 17, 32, 33, 64, 65, 68, 130};
  static const int64_t depths[] = {0,   1,   3,   8,   15,  16,  17,  32,   48,   255,
                                   256, 257, 260, 512, 516, 768, 800, 1024, 1100, 1300};
  for (int i = 0; i < rounds; ++i) check_one(sizes[pick(14)], sizes[pick(14)], depths[pick(20)]);
  for (int i = 0; i < rounds; ++i) {
    // Most multiples of 8 can be read in runs of 16 bytes.
    const int64_t step = pick(3) == 0 ? 1 : 8;
    const auto drawn = [&](int64_t size) { return (size + step - 1) / step * step; };
    check_on_tensor_cores(drawn(sizes[pick(14)]), drawn(sizes[pick(14)]), drawn(depths[pick(20)]),
                          pick(2) == 0 ? 0 : 1 + pick(120));
  }
  check_one(20, 24, 1100);  // five leaves
  check_on_tensor_cores(20, 24, 1100, 0);
}

void check_several_tiles_for_each_block() {
  check_one(300, 280, 528);
  check_on_tensor_cores(300, 280, 528, 0);
}

void check_several_of_the_largest_tile() {
  for (int i = 0; i < 6; ++i) check_on_tensor_cores(144, 136, 272, 0);
}

}  // namespace

// Arguments: the number of random sizes and a seed, then "random", "tiles" or "largest" for a part.
int main(int count, char** arguments) {
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 40;
  if (count > 2) product_test::random_words.seed(std::strtoull(arguments[2], nullptr, 10));
  const std::string part = count > 3 ? arguments[3] : "";
  check_refusals();
  if (part.empty() || part == "random") check_random_sizes(rounds);
  if (part.empty() || part == "tiles") check_several_tiles_for_each_block();
  if (part.empty() || part == "largest") check_several_of_the_largest_tile();
  std::printf("product_simt: %d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
