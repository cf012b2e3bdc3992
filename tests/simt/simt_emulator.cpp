#include "simt_emulator.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define BRIDGE_FIBER_START(save, bottom, size) __sanitizer_start_switch_fiber(save, bottom, size)
#define BRIDGE_FIBER_FINISH(save, bottom, size) __sanitizer_finish_switch_fiber(save, bottom, size)
#else
#define BRIDGE_FIBER_START(save, bottom, size) ((void)(save), (void)(bottom), (void)(size))
#define BRIDGE_FIBER_FINISH(save, bottom, size) ((void)(save), (void)(bottom), (void)(size))
#endif

namespace bridge::simt::emulator {
namespace {

constexpr size_t kStackBytes = size_t{256} << 10;
constexpr size_t kGuardBytes = size_t{4} << 10;
constexpr size_t kMaxShuffleBytes = 16;

enum class State { ready, at_sync, at_cluster_sync, at_shuffle, done };

struct Block {
  Index index{};
  int rank = 0;          // rank in its cluster
  bool has_met = false;  // has met the other blocks of its cluster
  bool has_ended = false;
  std::map<const void*, std::vector<Vector16>> shared;
  std::vector<Vector16> dynamic;
};

// The point where a fiber or the scheduler continues.
using Place = void* [5];

struct Fiber {
  ucontext_t start;
  Place place;
  bool has_started = false;
  void* memory = nullptr;
  void* sanitizer = nullptr;
  State state = State::done;
  int index = 0;  // index in its block
  Block* block = nullptr;
  int line = 0;
  int source_lane = 0;
  size_t bytes = 0;
  unsigned char value[kMaxShuffleBytes];

  Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;
  ~Fiber() {
    if (memory != nullptr) munmap(memory, kStackBytes);
  }
};

struct Launch {
  Index count{};
  void (*body)(const void*) = nullptr;
  const void* params = nullptr;
  int threads = 0;  // per block
};

Options g_options;
std::string g_failure;
int64_t g_launches = 0;
Launch g_launch;
std::vector<Block> g_cluster;  // the running blocks
Fiber* g_current = nullptr;
Place g_scheduler;
const void* g_scheduler_bottom = nullptr;
size_t g_scheduler_size = 0;
std::vector<std::unique_ptr<Fiber>> g_fibers;
std::mt19937_64 g_random;

// swapcontext would work, but calls the kernel twice for the signal mask, which takes half of the
// emulator's time. AddressSanitizer would forget the state of a stack that longjmp leaves.
#define BRIDGE_SWITCHES __attribute__((noinline, no_sanitize("address")))
[[noreturn]] BRIDGE_SWITCHES void go_on(Place& to) { __builtin_longjmp(to, 1); }
BRIDGE_SWITCHES void leave(Place& from, Place& to) {
  if (__builtin_setjmp(from) == 0) go_on(to);
}
BRIDGE_SWITCHES void leave(Place& from, const ucontext_t& start) {
  if (__builtin_setjmp(from) == 0) setcontext(&start);
}

// Gives control back to the scheduler until it chooses this fiber again.
void yield() {
  Fiber* self = g_current;
  BRIDGE_FIBER_START(&self->sanitizer, g_scheduler_bottom, g_scheduler_size);
  leave(self->place, g_scheduler);
  BRIDGE_FIBER_FINISH(self->sanitizer, &g_scheduler_bottom, &g_scheduler_size);
}

// A fiber never returns: it runs one thread of a block after another.
void fiber_main() {
  BRIDGE_FIBER_FINISH(nullptr, &g_scheduler_bottom, &g_scheduler_size);
  for (;;) {
    g_launch.body(g_launch.params);
    g_current->state = State::done;
    yield();
  }
}

void resume(Fiber& fiber) {
  void* sanitizer = nullptr;
  g_current = &fiber;
  BRIDGE_FIBER_START(&sanitizer, static_cast<char*>(fiber.memory) + kGuardBytes,
                     kStackBytes - kGuardBytes);
  if (fiber.has_started) {
    leave(g_scheduler, fiber.place);
  } else {
    fiber.has_started = true;
    leave(g_scheduler, fiber.start);
  }
  BRIDGE_FIBER_FINISH(sanitizer, nullptr, nullptr);
  g_current = nullptr;
}

std::unique_ptr<Fiber> make_fiber() {
  auto fiber = std::make_unique<Fiber>();
  fiber->memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (fiber->memory == MAP_FAILED) {
    fiber->memory = nullptr;
    return nullptr;
  }
  mprotect(fiber->memory, kGuardBytes, PROT_NONE);
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(fiber->memory, kStackBytes);  // poisoned by an earlier stack there
#endif
  getcontext(&fiber->start);
  fiber->start.uc_stack.ss_sp = static_cast<char*>(fiber->memory) + kGuardBytes;
  fiber->start.uc_stack.ss_size = kStackBytes - kGuardBytes;
  fiber->start.uc_link = nullptr;
  makecontext(&fiber->start, fiber_main, 0);
  return fiber;
}

std::string describe(const Fiber& fiber) {
  static const char* const kNames[] = {"runs", "waits at sync", "waits at sync_cluster",
                                       "waits at shuffle", "has exited"};
  std::string text =
      "thread " + std::to_string(fiber.index) + " " + kNames[static_cast<int>(fiber.state)];
  if (fiber.state != State::ready && fiber.state != State::done) {
    text += " in line " + std::to_string(fiber.line);
  }
  return text;
}

bool same_place(const Fiber& a, const Fiber& b) { return a.state == b.state && a.line == b.line; }

// Gives every lane the value of its source lane; returns true if all 32 lanes had reached the same
// shuffle.
bool release_shuffle(int first, int threads) {
  const int last = std::min(first + kWarpThreads, threads);
  for (int i = first; i < last; ++i) {
    if (g_fibers[i]->state != State::at_shuffle) return false;
    if (!same_place(*g_fibers[i], *g_fibers[first])) return false;
  }
  unsigned char values[kWarpThreads][kMaxShuffleBytes];
  for (int i = first; i < last; ++i) std::memcpy(values[i - first], g_fibers[i]->value, 16);
  for (int i = first; i < last; ++i) {
    std::memcpy(g_fibers[i]->value, values[g_fibers[i]->source_lane], g_fibers[i]->bytes);
    g_fibers[i]->state = State::ready;
  }
  return true;
}

// Releases the threads from `first` on that wait at a barrier; returns true if all had reached the
// same one.
bool release_sync(State barrier, int first, int threads) {
  for (int i = first; i < first + threads; ++i) {
    if (g_fibers[i]->state != barrier) return false;
    if (!same_place(*g_fibers[i], *g_fibers[first])) return false;
  }
  for (int i = first; i < first + threads; ++i) g_fibers[i]->state = State::ready;
  return true;
}

bool release_syncs(int threads) {
  bool progress = false;
  for (int i = 0; i < threads; i += g_launch.threads)
    progress |= release_sync(State::at_sync, i, g_launch.threads);
  if (!release_sync(State::at_cluster_sync, 0, threads)) return progress;
  for (Block& block : g_cluster) block.has_met = true;
  return true;
}

void poison(std::vector<Vector16>& memory) {
  if (memory.empty() || !g_options.poison_shared) return;
  std::memset(memory.data(), 0xff, memory.size() * sizeof(Vector16));
}

// Runs the threads of one warp until none can continue.
bool run_warp(int first, int threads) {
  bool progress = false;
  do {
    for (int i = first; i < std::min(first + kWarpThreads, threads); ++i) {
      if (g_fibers[i]->state != State::ready) continue;
      resume(*g_fibers[i]);
      progress = true;
    }
  } while (release_shuffle(first, threads));
  return progress;
}

// Runs the warps of one block as far ahead of the other blocks of its cluster as these allow.
bool run_block(int first) {
  const int end = first + g_launch.threads;
  bool progress = false;
  do {
    for (int i = first; i < end; i += kWarpThreads) progress |= run_warp(i, end);
  } while (release_sync(State::at_sync, first, g_launch.threads));
  return progress;
}

// Marks the blocks that have ended; returns true if all have.
bool have_ended() {
  bool all = true;
  for (Block& block : g_cluster) {
    block.has_ended = true;
    for (int i = 0; i < g_launch.threads; ++i) {
      const Fiber& fiber = *g_fibers[block.rank * g_launch.threads + i];
      block.has_ended = block.has_ended && fiber.state == State::done;
    }
    all = all && block.has_ended;
  }
  return all;
}

// Runs the threads of a cluster in turns until all have exited; returns false on a deadlock.
bool run_cluster(std::vector<int>& order) {
  const int threads = static_cast<int>(order.size());
  for (Block& block : g_cluster) {
    for (auto& entry : block.shared) poison(entry.second);
    poison(block.dynamic);
    block.has_met = block.has_ended = false;
  }
  for (int i = 0; i < threads; ++i) {
    Fiber& fiber = *g_fibers[i];
    fiber.state = State::ready;
    fiber.index = i % g_launch.threads;
    fiber.block = &g_cluster[i / g_launch.threads];
  }
  for (;;) {
    if (g_options.order == Order::random) std::shuffle(order.begin(), order.end(), g_random);
    bool progress = false;
    if (g_options.order == Order::warps) {
      for (int first = 0; first < threads; first += g_launch.threads) progress |= run_block(first);
    }
    for (int i : order) {
      if (g_fibers[i]->state != State::ready) continue;
      resume(*g_fibers[i]);
      progress = true;
    }
    if (have_ended()) return true;
    for (int i = 0; i < threads; i += kWarpThreads) progress |= release_shuffle(i, threads);
    progress |= release_syncs(threads);
    if (progress) continue;
    const Fiber& waiting = **std::find_if(g_fibers.begin(), g_fibers.end(), [](const auto& fiber) {
      return fiber->state != State::done;
    });
    for (int i = 0; i < threads; ++i) {
      if (same_place(*g_fibers[i], waiting)) continue;
      fail("deadlock: " + describe(waiting) + " while " + describe(*g_fibers[i]));
      return false;
    }
    fail("deadlock: " + describe(waiting) + " with a lane missing");
    return false;
  }
}

}  // namespace

Options& options() { return g_options; }

std::string take_failure() {
  std::string failure;
  failure.swap(g_failure);
  return failure;
}

int64_t launches() { return g_launches; }

void fail(const std::string& message) {
  if (g_failure.empty()) g_failure = message;
}

Index block_index() { return g_current->block->index; }
Index block_count() { return g_launch.count; }
int thread_index() { return g_current->index; }
int cluster_rank() { return g_current->block->rank; }

void sync(int line) {
  g_current->state = State::at_sync;
  g_current->line = line;
  yield();
}

void sync_cluster(int line) {
  g_current->state = State::at_cluster_sync;
  g_current->line = line;
  yield();
}

void shuffle(void* value, size_t bytes, int source_lane, int line) {
  Fiber& self = *g_current;
  if (bytes > kMaxShuffleBytes || source_lane < 0 || source_lane >= kWarpThreads) {
    fail("shuffle of " + std::to_string(bytes) + " bytes from lane " + std::to_string(source_lane));
    return;
  }
  std::memcpy(self.value, value, bytes);
  self.bytes = bytes;
  self.source_lane = source_lane;
  self.line = line;
  self.state = State::at_shuffle;
  yield();
  std::memcpy(value, self.value, bytes);
}

void* shared(const void* key, size_t bytes) {
  std::vector<Vector16>& memory = g_current->block->shared[key];
  if (memory.empty()) {
    memory.resize((bytes + 15) / 16);
    poison(memory);
  }
  return memory.data();
}

void* dynamic_shared() { return g_current->block->dynamic.data(); }

void* in_cluster(void* own, size_t bytes, int rank) {
  const Block& from = *g_current->block;
  const auto offset = static_cast<size_t>(static_cast<char*>(own) -
                                          reinterpret_cast<const char*>(from.dynamic.data()));
  if (rank < 0 || rank >= static_cast<int>(g_cluster.size()) ||
      offset + bytes > from.dynamic.size() * sizeof(Vector16)) {
    fail("memory that block " + std::to_string(rank) + " of the cluster does not have");
    return nullptr;
  }
  Block& to = g_cluster[rank];
  if (!to.has_met || to.has_ended) {
    fail("memory of block " + std::to_string(rank) + " of the cluster, which may " +
         (to.has_ended ? "have ended" : "not have begun"));
    return nullptr;
  }
  return reinterpret_cast<char*>(to.dynamic.data()) + offset;
}

void check_alignment(const void* address, size_t alignment) {
  if (reinterpret_cast<uintptr_t>(address) % alignment != 0) fail("misaligned vector access");
}

const char* run(Grid grid, int threads, size_t dynamic_shared_bytes, void (*body)(const void*),
                const void* params) {
  ++g_launches;
  if (grid.x < 1 || grid.x > INT32_MAX || grid.y < 1 || grid.y > kMaxGridYZ || grid.z < 1 ||
      grid.z > kMaxGridYZ || threads < 1 || threads > 1024 || grid.cluster < 1 ||
      grid.cluster > kMostInCluster || grid.x % grid.cluster != 0 ||
      (grid.cluster > 1 && threads % kWarpThreads != 0)) {
    return "invalid configuration argument";
  }
  const int together = threads * grid.cluster;
  while (static_cast<int>(g_fibers.size()) < together) {
    g_fibers.push_back(make_fiber());
    if (g_fibers.back() == nullptr) {
      g_fibers.pop_back();
      return "out of memory for the emulator's stacks";
    }
  }
  g_random.seed(g_options.seed);
  std::vector<int> order(together);
  std::iota(order.begin(), order.end(), 0);
  if (g_options.order == Order::reverse) std::reverse(order.begin(), order.end());
  g_launch = {
      {static_cast<uint32_t>(grid.x), static_cast<uint32_t>(grid.y), static_cast<uint32_t>(grid.z)},
      body,
      params,
      threads};
  g_cluster.assign(static_cast<size_t>(grid.cluster), Block{});
  for (Block& block : g_cluster) block.dynamic.assign((dynamic_shared_bytes + 15) / 16, Vector16{});
  const int64_t clusters = grid.x / grid.cluster * grid.y * grid.z;
  for (int64_t i = 0; i < clusters; ++i) {
    const int64_t first = (g_options.order == Order::reverse ? clusters - 1 - i : i) * grid.cluster;
    for (int rank = 0; rank < grid.cluster; ++rank) {
      const int64_t number = first + rank;
      g_cluster[rank].rank = rank;
      g_cluster[rank].index = {static_cast<uint32_t>(number % grid.x),
                               static_cast<uint32_t>(number / grid.x % grid.y),
                               static_cast<uint32_t>(number / grid.x / grid.y)};
    }
    if (run_cluster(order)) continue;
    g_fibers.clear();  // the stuck stacks cannot be used again
    return nullptr;    // take_failure() returns the error
  }
  return nullptr;
}

}  // namespace bridge::simt::emulator
