// Checks the emulator itself: it computes the results of a GPU, and it detects the mistakes that it
// is made to detect.
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/simt.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace {

using namespace bridge::simt;
using emulator::Order;

int g_passed = 0;
int g_failed = 0;

void expect(bool holds, const char* what) {
  ++(holds ? g_passed : g_failed);
  if (!holds) std::printf("FAILED: %s\n", what);
}

struct Params {
  int* out;
};

// Each block adds the numbers of its threads, with shuffles in a warp and then through shared
// memory.
struct Sum {
  using Params = ::Params;
  static constexpr int kThreads = 128;
  static void run(const Params& params) {
    int value = static_cast<int>(block_index().y * 1000) + thread_index();
    for (int mask = 16; mask > 0; mask /= 2) value += shuffle_xor(value, mask);
    int* warps = shared_array<int, 4>();
    if (thread_index() % kWarpThreads == 0) warps[thread_index() / kWarpThreads] = value;
    sync();
    if (thread_index() != 0) return;
    params.out[block_index().y * block_count().x + block_index().x] =
        warps[0] + warps[1] + warps[2] + warps[3];
  }
};

struct Broadcast {
  using Params = ::Params;
  static constexpr int kThreads = 64;
  static void run(const Params& params) { params.out[thread_index()] = shuffle(thread_index(), 5); }
};

struct Dynamic {
  using Params = ::Params;
  static constexpr int kThreads = 64;
  static void run(const Params& params) {
    int* memory = dynamic_shared<int>();
    memory[thread_index()] = thread_index();
    sync();
    params.out[thread_index()] = memory[kThreads - 1 - thread_index()];
  }
};

#if defined(__SANITIZE_ADDRESS__)
struct LocalArray {
  using Params = ::Params;
  static constexpr int kThreads = 64;
  static void run(const Params& params) {
    char local[24];
    std::memset(local, 1, sizeof local);
    const bool is_seen = __asan_address_is_poisoned(local + 24) != 0;
    sync();
    const bool is_seen_then = __asan_address_is_poisoned(local + 24) != 0;
    params.out[thread_index()] = is_seen && is_seen_then && __asan_address_is_poisoned(local) == 0;
  }
};
#endif

struct ExitsBeforeSync {
  using Params = ::Params;
  static constexpr int kThreads = 64;
  static void run(const Params&) {
    if (thread_index() == 3) return;
    sync();
  }
};

struct DivergentSync {
  using Params = ::Params;
  static constexpr int kThreads = 64;
  static void run(const Params&) {
    if (thread_index() < 32) {
      sync();
    } else {
      sync();
    }
  }
};

struct LaneMissing {
  using Params = ::Params;
  static constexpr int kThreads = 32;
  static void run(const Params&) {
    if (thread_index() != 7) shuffle(1, 0);
  }
};

// Each block of a cluster stores its number in all blocks, which add them up. `kMeets` is the
// number of cluster barriers, before and after the stores; two are correct.
template <int kMeets>
struct Cluster {
  static void run(const void* params) {
    int* memory = dynamic_shared<int>();
    constexpr int kBlocks = 4;
    if (kMeets > 0) sync_cluster();
    if (thread_index() < kBlocks)
      store_in_cluster(memory + cluster_rank(), thread_index(),
                       static_cast<int>(block_index().x + 1));
    if (kMeets > 1) sync_cluster();
    if (thread_index() != 0) return;
    static_cast<const Params*>(params)->out[block_index().x] =
        memory[0] + memory[1] + memory[2] + memory[3];
  }
};

// A block waits only for itself before it reads the numbers from other blocks.
struct BlockRunsAhead {
  static void run(const void* params) {
    int* memory = dynamic_shared<int>();
    sync_cluster();
    if (thread_index() < 4) store_in_cluster(memory + cluster_rank(), thread_index(), 1);
    sync();
    if (thread_index() == 0) static_cast<const Params*>(params)->out[block_index().x] = memory[3];
    sync_cluster();
  }
};

struct HalfOfClusterMeets {
  static void run(const void*) {
    if (cluster_rank() % 2 == 0) sync_cluster();
  }
};

struct BehindItsBlock {
  static void run(const void*) {
    sync_cluster();
    store_in_cluster(dynamic_shared<int>() + 8, 0, 1);
  }
};

// A thread reads the number of its neighbour without waiting for it.
struct Race {
  using Params = ::Params;
  static constexpr int kThreads = 64;
  static void run(const Params& params) {
    int* memory = shared_array<int, 64>();
    memory[thread_index()] = thread_index();
    params.out[thread_index()] = memory[(thread_index() + 1) % 64];
    sync();
  }
};

// The first warp overwrites a value that the second has not read yet: a barrier is missing.
struct RunsAhead {
  using Params = ::Params;
  static constexpr int kThreads = 64;
  static void run(const Params& params) {
    int* memory = shared_array<int, 1>();
    for (int turn = 0; turn < 2; ++turn) {
      if (thread_index() == 0) memory[0] = turn;
      sync();
      params.out[thread_index()] = shuffle(memory[0], 0) - turn;
      if (turn == 0 && params.out[thread_index()] != 0) return;
    }
  }
};

struct ReadsUnwritten {
  using Params = ::Params;
  static constexpr int kThreads = 32;
  static void run(const Params& params) {
    float* memory = shared_array<float, 32>();
    params.out[thread_index()] = memory[thread_index()] != memory[thread_index()] ? 1 : 0;
  }
};

struct Misaligned {
  using Params = ::Params;
  static constexpr int kThreads = 32;
  static void run(const Params& params) {
    if (thread_index() == 0) store16(params.out, load16(params.out + 1));
  }
};

template <class Kernel>
std::string run(std::vector<int>& out, Grid grid = {}, size_t dynamic = 0) {
  const char* error = launch<Kernel>(grid, dynamic, nullptr, Params{out.data()});
  const std::string failure = emulator::take_failure();
  return error != nullptr ? error : failure;
}

template <class Kernel>
std::string run_cluster(std::vector<int>& out) {
  EmulatedKernel kernel{"", Kernel::run};
  const Params params{out.data()};
  Grid grid;
  grid.x = 8;
  grid.threads = 64;
  grid.cluster = 4;
  const char* error = launch_found(&kernel, grid, 4 * sizeof(int), nullptr, &params);
  const std::string failure = emulator::take_failure();
  return error != nullptr ? error : failure;
}

bool mentions(const std::string& text, const char* word) {
  return text.find(word) != std::string::npos;
}

}  // namespace

int main() {
  std::vector<int> out(64);
  for (Order order : {Order::forward, Order::reverse, Order::random, Order::warps}) {
    emulator::options().order = order;
    expect(run<Sum>(out, {3, 2, 1}).empty(), "a block sum runs");
    const int sum = 127 * 128 / 2;
    expect(out[0] == sum && out[2] == sum && out[5] == sum + 128 * 1000, "a block sum is right");
    out.assign(64, 0);
    expect(run_cluster<Cluster<2>>(out).empty(), "blocks of a cluster leave numbers");
    bool are_sums = true;
    for (int i = 0; i < 8; ++i) are_sums = are_sums && out[i] == (i < 4 ? 10 : 26);
    expect(are_sums, "a cluster's numbers are added");
    expect(mentions(run_cluster<Cluster<0>>(out), "not have begun"), "a block that has not begun");
    expect(mentions(run_cluster<HalfOfClusterMeets>(out), "sync_cluster"), "blocks that miss");
    expect(mentions(run_cluster<BehindItsBlock>(out), "does not have"), "behind a block's memory");
    expect(run<Broadcast>(out).empty() && out[0] == 5 && out[63] == 37,
           "shuffle stays in its warp");
    expect(run<Dynamic>(out, {}, 64 * sizeof(int)).empty() && out[0] == 63 && out[63] == 0,
           "dynamic shared memory");
#if defined(__SANITIZE_ADDRESS__)
    expect(run<LocalArray>(out).empty() && out == std::vector<int>(64, 1),
           "what lies behind a local array is seen when a thread goes on");
#endif
  }
  emulator::options().order = Order::forward;

  std::string failure = run<ExitsBeforeSync>(out);
  expect(mentions(failure, "sync") && mentions(failure, "thread 3 has exited"),
         "a thread that exits before the barrier is named");
  expect(mentions(run<DivergentSync>(out), "deadlock"), "two different barriers do not meet");
  expect(mentions(run<LaneMissing>(out), "shuffle"), "a shuffle without all lanes is seen");
  expect(mentions(run<Misaligned>(out), "misaligned"), "a misaligned vector is seen");
  expect(run<Sum>(out).empty() && out[0] == 127 * 128 / 2, "the emulator goes on after a failure");

  std::vector<int> forward(64), reverse(64);
  run<Race>(forward);
  emulator::options().order = Order::reverse;
  run<Race>(reverse);
  emulator::options().order = Order::forward;
  expect(forward != reverse, "a race shows as a difference between orders");

  run<RunsAhead>(forward);
  emulator::options().order = Order::warps;
  const std::string ahead = run<RunsAhead>(out);
  emulator::options().order = Order::forward;
  expect(!ahead.empty() || forward != out, "a warp that runs ahead of a missing barrier is seen");

  run_cluster<BlockRunsAhead>(forward);
  emulator::options().order = Order::warps;
  run_cluster<BlockRunsAhead>(out);
  emulator::options().order = Order::forward;
  expect(forward[0] == 1 && out[0] != 1, "a block that runs ahead of its cluster is seen");

  run<ReadsUnwritten>(out);
  expect(out[0] == 1 && out[31] == 1, "shared memory that nothing wrote is NaN");
  expect(run<Sum>(out, {1, kMaxGridYZ + 1, 1}) != "", "a grid that is too large is refused");

  std::printf("%d passed, %d failed\n", g_passed, g_failed);
  return g_failed == 0 ? 0 : 1;
}
