// Runs convolutions on the emulator or a GPU and compares them with a plain evaluation.
#include <bridge/convolution.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "../cpp/convolution_reference.h"
#include "executor.h"
#include "tensor_core_turn.h"

namespace {

using namespace bridge;  // NOLINT
using convolution_test::Array;
using convolution_test::Case;
using convolution_test::Limits;
using convolution_test::pick;

int passed = 0;
int failed = 0;

void check(bool holds, const std::string& what) {
  ++(holds ? passed : failed);
  if (!holds) std::printf("FAILED: %s\n", what.c_str());
}

// The memory of an array where kernels reach it, and the array there.
struct Placed {
  executor::Memory memory;
  bridge_convolution_array array;

  explicit Placed(const Array& from) : memory(executor::allocate(from.memory.size())) {
    std::memcpy(memory.get(), from.memory.data(), from.memory.size());
    array = from.array;
    array.data = memory.get() + (static_cast<const char*>(from.array.data) - from.memory.data());
  }
};

void check_case(const Case& given) {
  const int32_t kind = given.call.kind;
  bridge_convolution call = given.call;
  const Placed x(given.x), w(given.w), bias(given.bias), y(given.y);
  call.x = x.array, call.w = w.array, call.y = y.array;
  if (call.bias.data != nullptr) call.bias = bias.array;
  const size_t least = bridge_convolution_cuda_least_workspace(&call);
  const size_t most = bridge_convolution_cuda_workspace(&call);
  check(least <= most, given.words() + ": the least workspace is the larger");
  const size_t bytes = pick(2) == 0 ? least : most;
  const executor::Memory workspace = executor::allocate(bytes);
  executor::next_order();
  const bridge_convolution there = executor::placed(call);
  const bridge_status status =
      bridge_convolution_cuda(&there, executor::placed(workspace), bytes, nullptr);
  const std::string failure = executor::finish();
  if (status != BRIDGE_OK || !failure.empty())
    return check(false, given.words() + ": " + bridge_cuda_last_error() + failure);
  const Placed& result = kind == 0 ? y : kind == 1 ? x : w;
  check(std::memcmp(result.memory.get(), given.expected.memory.data(),
                    given.expected.memory.size()) == 0,
        given.words() + ": other bits");
}

// Moves the images of x apart, so that offsets do not fit the kernels for small arrays.
void move_images_apart(Case* given) {
  Array& x = given->x;
  constexpr size_t kBytes = 2;
  const std::vector<char> from = x.memory;
  const auto front = static_cast<const char*>(x.array.data) - x.memory.data();
  const auto batch = static_cast<size_t>(x.array.batch_stride) * kBytes;
  x.array.batch_stride = (int64_t{1} << 22) + 8;
  const auto apart = static_cast<size_t>(x.array.batch_stride) * kBytes;
  const auto images = static_cast<size_t>(x.size[0]);
  x.memory.assign(from.size() + apart * (images - 1), 0x55);
  for (size_t n = 0; n < images; ++n)
    std::memcpy(x.memory.data() + n * apart, from.data() + n * batch, from.size() - n * batch);
  x.array.data = x.memory.data() + front;
  given->call.x = x.array;
}

void check_on_tensor_cores(int32_t kind, const Limits& limits, int64_t step, bool is_large) {
  Case given = convolution_test::random_operands(kind, limits, true, step);
  if (is_large && given.x.size[0] > 1) move_images_apart(&given);
  const bool is_float16 = (kind == 0   ? given.w
                           : kind == 1 ? given.y
                                       : given.x)
                              .array.dtype == BRIDGE_FLOAT16;
  const tensor_core_test::MmaChain leaf{tensor_core_test::next_model(), is_float16 ? -14 : -126};
  convolution_test::expected_of<float>(&given, leaf);
  check_case(given);
}

void check_refusals() {
  bridge_convolution call{};
  call.images = call.in_channels = call.out_channels = call.groups = 1;
  for (int d = 0; d < BRIDGE_CONVOLUTION_DIMS; ++d)
    call.in[d] = call.kernel[d] = call.out[d] = call.stride[d] = call.dilation[d] = 1;
  const auto refused = [](const bridge_convolution* given, const char* words) {
    const bridge_status status = bridge_convolution_cuda(given, nullptr, 0, nullptr);
    check(status == BRIDGE_INVALID_ARGUMENT &&
              std::strstr(bridge_cuda_last_error(), words) != nullptr,
          std::string("not refused: ") + words);
  };
  refused(nullptr, "null");
  check(bridge_convolution_cuda_workspace(nullptr) == 0, "no call needs no workspace");
  call.in_channels = 300;
  refused(&call, "workspace");
  call.tensor_cores = 1;
  call.x.dtype = call.w.dtype = call.y.dtype = BRIDGE_FLOAT32;
  refused(&call, "tensor cores for others");
  call.groups = 0;
  refused(&call, "groups");
}

}  // namespace

int main(int count, char** arguments) {
  const int rounds = count > 1 ? std::atoi(arguments[1]) : 30;
  if (count > 2) product_test::random_words.seed(std::strtoull(arguments[2], nullptr, 10));
  // Tiny; deep in channels; several tiles of channels; several tiles of places.
  static const Limits limits[] = {
      {3, 5, 5, 7, 4}, {2, 300, 9, 4, 3}, {1, 6, 140, 5, 2}, {2, 5, 5, 14, 3}};
  check_refusals();
  for (int i = 0; i < rounds; ++i)
    check_case(convolution_test::random_case(i % 3, limits[i / 3 % 4]));
  // Most channels in multiples of 8 can be read in runs of 16 bytes.
  for (int i = 0; i < 2 * rounds; ++i)
    check_on_tensor_cores(i % 3, limits[i / 3 % 4], pick(3) == 0 ? 1 : 8, false);
  for (int i = 0; i < 4; ++i) check_on_tensor_cores(i % 2 * 2, limits[i / 2], 8, true);
  std::printf("convolution_simt: %d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
