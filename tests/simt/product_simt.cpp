// Runs matrix products on the emulator or a GPU and compares them with a plain evaluation, and with
// the CPU kernels.
#include <bridge/bridge.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "../cpp/product_reference.h"
#include "executor.h"

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

void check_one(int64_t m, int64_t n, int64_t k) {
  const product_test::Case given = product_test::random_case(m, n, k);
  bridge_product call = given.call;
  const Placed a(given.a), b(given.b), bias(given.bias), c(given.c);
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
}

}  // namespace

int main(int count, char** arguments) {
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 40;
  if (count > 2) product_test::random_words.seed(std::strtoull(arguments[2], nullptr, 10));
  static const int64_t sizes[] = {0, 1, 2, 4, 7, 8, 16, 17, 32, 33, 64, 65, 68, 130};
  static const int64_t depths[] = {0,   1,   3,   8,   15,  16,  17,  32,   48,  255,
                                   256, 257, 260, 512, 516, 768, 800, 1024, 1300};
  check_refusals();
  for (int i = 0; i < rounds; ++i) check_one(sizes[pick(14)], sizes[pick(14)], depths[pick(19)]);
  check_one(300, 280, 528);  // several tiles for each block
  std::printf("product_simt: %d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
