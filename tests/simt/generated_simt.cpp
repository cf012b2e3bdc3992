// Checks kernels generated from programs (bridge/lang/emission/cuda.py) on the emulator, through
// the C functions: the functions that add kernels, which verify them too, and calls on arrays of
// any layout. Every result must have the bits of the definition, program_reference.h.
//
//   generated_simt <description> [number of calls [seed]]
//
// A description is a text of numbers and words without spaces. Each program has: the path of its
// compiled library, or "hand" for kernels written by hand, vector, cells, held, kinds, staged, the
// number of arrays, their dtypes, the number of free constants, their numbers, the number of words,
// and the words.
#include <bridge/bridge.h>
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <vector>

#include "../cpp/program_reference.h"
#include "../cpp/random_call.h"
#include "executor.h"
#include "generated/cuda/call.h"
#include "generated/cuda/hand_written.h"

namespace {

using namespace bridge::random;  // NOLINT: the parts of a check
namespace executor = bridge::executor;
using bridge::simt::EmulatedKernel;

struct Compiled {
  std::string path;
  bridge_program_kernels kernels{};
  std::vector<int32_t> dtypes, free, words;
  std::vector<EmulatedKernel> image;
};

bool is_by_hand(const Compiled& compiled) { return compiled.path == "hand"; }

bool read_one(std::istream& from, Compiled* to) {
  bridge_program_kernels& kernels = to->kernels;
  int64_t words = 0;
  from >> to->path >> kernels.vector >> kernels.cells >> kernels.held >> kernels.kinds >>
      kernels.staged >> kernels.arrays;
  to->dtypes.resize(static_cast<size_t>(from ? kernels.arrays : 0));
  for (int32_t& dtype : to->dtypes) from >> dtype;
  from >> kernels.free_count;
  to->free.resize(static_cast<size_t>(from ? kernels.free_count : 0));
  for (int32_t& number : to->free) from >> number;
  from >> words;
  to->words.resize(static_cast<size_t>(from ? words : 0));
  for (int32_t& word : to->words) from >> word;
  if (!from) return false;
  kernels.code = to->words.data();
  kernels.words = words;
  kernels.dtypes = to->dtypes.data();
  kernels.free = to->free.data();
  if (is_by_hand(*to)) return true;
  void* const handle = dlopen(to->path.c_str(), RTLD_NOW | RTLD_LOCAL);
  check(handle != nullptr, handle != nullptr ? "" : dlerror());
  for (const char* name : bridge::interpreter::kGeneratedNames) {
    void* const found = handle != nullptr ? dlsym(handle, name) : nullptr;
    if (found != nullptr)
      to->image.push_back({name, reinterpret_cast<void (*)(const void*)>(found)});
  }
  to->image.push_back({nullptr, nullptr});
  kernels.image = to->image.data();
  return true;
}

struct Arena {
  std::vector<executor::Memory> pieces;
  std::vector<size_t> sizes;

  char* allocate(int64_t bytes) {
    pieces.push_back(executor::allocate(static_cast<size_t>(bytes)));
    sizes.push_back(static_cast<size_t>(bytes));
    return pieces.back().get();
  }
  std::vector<std::vector<char>> contents() const {
    std::vector<std::vector<char>> all;
    for (size_t i = 0; i < pieces.size(); ++i)
      all.emplace_back(pieces[i].get(), pieces[i].get() + sizes[i]);
    return all;
  }
  void restore(const std::vector<std::vector<char>>& contents) {
    for (size_t i = 0; i < pieces.size(); ++i)
      std::copy(contents[i].begin(), contents[i].end(), pieces[i].get());
  }
};

// Returns the words with other values for free constants, including thresholds of random words.
std::vector<int32_t> other_words(const Compiled& compiled) {
  std::vector<int32_t> words = compiled.words;
  for (const int32_t number : compiled.free) {
    int32_t* const at = &words[static_cast<size_t>(kHeaderWords + 2 * number)];
    double value = 0;
    std::memcpy(&value, at, sizeof value);
    const bool is_threshold = value == std::floor(value) && value >= 1;
    value = is_threshold ? std::floor(value / 2) + 1 : value * (1 + 0.25 * pick(4));
    std::memcpy(at, &value, sizeof value);
  }
  return words;
}

void compare_call(const Compiled& compiled, const bridge_program& sizes) {
  const std::vector<int32_t> words = chance(2) ? other_words(compiled) : compiled.words;
  View view;
  const char* why = nullptr;
  if (!read(words.data(), static_cast<int64_t>(words.size()), &view, &why))
    return check(false, why);
  Arena arena;
  ProgramCall made;
  made.call = sizes;
  make_arrays(
      words, view, true, [&](int64_t bytes) { return arena.allocate(bytes); }, &made,
      compiled.dtypes.data());
  const auto before = arena.contents();
  bridge::reference::run(view, made.call);
  const auto expected = arena.contents();
  arena.restore(before);
  executor::next_order();
  const size_t bytes = bridge_program_cuda_workspace(&made.call);
  executor::Memory workspace = executor::allocate(bytes);
  std::memset(workspace.get(), 0xff, bytes);
  const bridge_status status =
      bridge_program_cuda(&made.call, bytes > 0 ? workspace.get() : nullptr, bytes, nullptr);
  const std::string failure = executor::finish();
  check(failure.empty(), failure);
  check(status == BRIDGE_OK && arena.contents() == expected,
        compiled.path + made.text + (status == BRIDGE_OK ? "" : bridge_cuda_last_error()));
}

void add(const Compiled& compiled, int64_t before) {
  executor::next_order();
  const bridge_status status = bridge_program_cuda_add(&compiled.kernels);
  const std::string failure = executor::finish();
  check(failure.empty(), failure);
  check(status == BRIDGE_OK, compiled.path + (status == BRIDGE_OK ? "" : bridge_cuda_last_error()));
  check(bridge_program_cuda_added_calls() == before, "the check of what is added is no call");
}

// The verification accepts the kernels of a program, and sees a kernel that writes nothing.
void verify_by_hand(const Compiled& compiled) {
  const auto all = bridge::interpreter::hand_written_programs();
  bridge::interpreter::HandWrittenProgram found{};
  for (int i = 0; i < all.count; ++i) {
    const auto& program = all.programs[i];
    if (compiled.words == std::vector<int32_t>(program.words, program.words + program.count) &&
        std::equal(compiled.dtypes.begin(), compiled.dtypes.end(), program.dtypes))
      found = program;
  }
  check(found.kernel != nullptr, "a program in the table");
  if (found.kernel == nullptr) return;
  executor::next_order();
  std::string wrong = bridge::interpreter::verified_by_hand(found);
  std::string failure = executor::finish();
  check(failure.empty() && wrong.empty(), failure + wrong);
  const bridge::interpreter::HandKernel idle = {
      found.kernel->takes,
      [](const bridge_program&, const View&, void*) -> const char* { return nullptr; },
      found.kernel->load};
  found.kernel = &idle;
  executor::next_order();
  wrong = bridge::interpreter::verified_by_hand(found);
  failure = executor::finish();
  check(wrong.find("other bits than the interpreter") != std::string::npos, "idle: " + wrong);
}

void run(Compiled& compiled, int calls) {
  const int64_t before = bridge_program_cuda_added_calls();
  if (is_by_hand(compiled))
    verify_by_hand(compiled);
  else
    add(compiled, before);
  static const int64_t cols[] = {0,   1,   7,    16,   32,   33,   64,   100,  128,  200,
                                 256, 257, 1000, 1024, 1032, 2048, 2500, 8192, 9000, 12288};
  for (int i = 0; i < calls; ++i) {
    bridge_program sizes{};
    choose_sizes(cols[pick(20)], 6000, &sizes);
    compare_call(compiled, sizes);
  }
  // Several chunks of rows, which not every layout of arrays can load in vectors.
  for (int i = 0; i < calls; ++i) {
    bridge_program sizes{};
    sizes.cols = i % 2 == 0 ? 256 : 136;
    sizes.dims = 1;
    sizes.size[0] = 120 + pick(150);
    compare_call(compiled, sizes);
  }
  // Short rows that fill all the vectors of a few threads: enough rows, or enough leaves of rows.
  for (const int64_t vectors : {8, 16, 32}) {
    bridge_program sizes{};
    sizes.cols = vectors * compiled.kernels.vector;
    sizes.dims = 1;
    sizes.size[0] = 8192 / vectors + pick(90);
    compare_call(compiled, sizes);
  }
  // Rows with a cluster of blocks each, around the number of chunks whose nodes a warp holds at
  // once.
  for (const int64_t some : {9728, 20000, 40960, 41001}) {
    bridge_program sizes{};
    sizes.cols = some;
    sizes.dims = 1;
    sizes.size[0] = 1 + pick(2);
    compare_call(compiled, sizes);
  }
  // The rows of a leaf one after another, in a cluster; each warp has several chunks, or a part of
  // them.
  for (const int64_t some : {9728, 2304}) {
    bridge_program sizes{};
    sizes.cols = some;
    sizes.dims = 1;
    sizes.size[0] = 18;
    compare_call(compiled, sizes);
  }
  check(2 * (bridge_program_cuda_added_calls() - before) > calls, "calls take what was added");
}

void run_refusals(const Compiled& compiled) {
  const auto refused = [](const bridge_program_kernels& kernels, bridge_status expected,
                          const char* words, const char* what = "a call") {
    const bridge_status status = bridge_program_cuda_add(&kernels);
    check(status == expected && std::strstr(bridge_cuda_last_error(), words) != nullptr,
          std::string("refused, ") + what + ": " + words);
    if (status == BRIDGE_OK) bridge_program_cuda_forget();
  };
  bridge_program_kernels kernels = compiled.kernels;
  kernels.words = 3;
  refused(kernels, BRIDGE_INVALID_ARGUMENT, "cannot be read");
  kernels = compiled.kernels;
  ++kernels.arrays;
  refused(kernels, BRIDGE_INVALID_ARGUMENT, "another number of dtypes");
  kernels = compiled.kernels;
  kernels.vector = 3;
  refused(kernels, BRIDGE_INVALID_ARGUMENT, "vectors of another length");
  kernels = compiled.kernels;
  kernels.device = 1;
  refused(kernels, BRIDGE_UNAVAILABLE, "nothing uses the device");
  kernels = compiled.kernels;
  kernels.image = nullptr;
  refused(kernels, BRIDGE_INTERNAL, "no image");
  const EmulatedKernel none[] = {{nullptr, nullptr}};
  kernels.image = none;
  refused(kernels, BRIDGE_INTERNAL, "bridge_short_aligned: named symbol not found");
  // Kernels that do nothing produce other bits.
  std::vector<EmulatedKernel> idle = compiled.image;
  for (EmulatedKernel& each : idle) each.body = [](const void*) {};
  kernels.image = idle.data();
  View view;
  const char* why = nullptr;
  if (!read(compiled.words.data(), static_cast<int64_t>(compiled.words.size()), &view, &why))
    return check(false, why);
  const int32_t cols = view.block > 0 ? view.block : 1;  // a row has whole blocks
  refused(kernels, BRIDGE_INTERNAL,
          ("other bits than the interpreter on 1 x 1 x " + std::to_string(cols)).c_str());
  // Each kernel is compared, even the kernels for more or longer rows than the verification has.
  for (size_t i = 0; i < idle.size(); ++i) {
    if (compiled.image[i].name == nullptr) continue;
    idle = compiled.image;
    idle[i].body = [](const void*) {};
    kernels.image = idle.data();
    refused(kernels, BRIDGE_INTERNAL, "other bits than the interpreter", idle[i].name);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const int calls = argc > 2 ? std::atoi(argv[2]) : 40;
  if (argc > 3) random_bits.seed(static_cast<uint64_t>(std::atoll(argv[3])));
  std::ifstream description(argv[1]);
  for (bool is_first = true;; is_first = false) {
    Compiled compiled;
    if (!read_one(description, &compiled)) break;
    if (is_first && !is_by_hand(compiled)) run_refusals(compiled);
    run(compiled, calls);
    bridge_program_cuda_forget();
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 ? 0 : 1;
}
