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

enum class State { ready, at_sync, at_shuffle, done };

struct Fiber {
  ucontext_t context;
  void* memory = nullptr;
  void* sanitizer = nullptr;
  State state = State::done;
  int index = 0;
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

struct Block {
  Index index{};
  Index count{};
  void (*body)(const void*) = nullptr;
  const void* params = nullptr;
  std::map<const void*, std::vector<Vector16>> shared;
  std::vector<Vector16> dynamic;
};

Options g_options;
std::string g_failure;
int64_t g_launches = 0;
Block g_block;
Fiber* g_current = nullptr;
ucontext_t g_scheduler;
const void* g_scheduler_bottom = nullptr;
size_t g_scheduler_size = 0;
std::vector<std::unique_ptr<Fiber>> g_fibers;
std::mt19937_64 g_random;

// Gives control back to the scheduler until it chooses this fiber again.
void yield() {
  Fiber* self = g_current;
  BRIDGE_FIBER_START(&self->sanitizer, g_scheduler_bottom, g_scheduler_size);
  swapcontext(&self->context, &g_scheduler);
  BRIDGE_FIBER_FINISH(self->sanitizer, &g_scheduler_bottom, &g_scheduler_size);
}

// A fiber never returns: it runs one thread of a block after another.
void fiber_main() {
  BRIDGE_FIBER_FINISH(nullptr, &g_scheduler_bottom, &g_scheduler_size);
  for (;;) {
    g_block.body(g_block.params);
    g_current->state = State::done;
    yield();
  }
}

void resume(Fiber& fiber) {
  void* sanitizer = nullptr;
  g_current = &fiber;
  BRIDGE_FIBER_START(&sanitizer, static_cast<char*>(fiber.memory) + kGuardBytes,
                     kStackBytes - kGuardBytes);
  swapcontext(&g_scheduler, &fiber.context);
  BRIDGE_FIBER_FINISH(sanitizer, nullptr, nullptr);
  g_current = nullptr;
}

std::unique_ptr<Fiber> make_fiber(int index) {
  auto fiber = std::make_unique<Fiber>();
  fiber->index = index;
  fiber->memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (fiber->memory == MAP_FAILED) {
    fiber->memory = nullptr;
    return nullptr;
  }
  mprotect(fiber->memory, kGuardBytes, PROT_NONE);
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = static_cast<char*>(fiber->memory) + kGuardBytes;
  fiber->context.uc_stack.ss_size = kStackBytes - kGuardBytes;
  fiber->context.uc_link = nullptr;
  makecontext(&fiber->context, fiber_main, 0);
  return fiber;
}

std::string describe(const Fiber& fiber) {
  static const char* const kNames[] = {"runs", "waits at sync", "waits at shuffle", "has exited"};
  std::string text =
      "thread " + std::to_string(fiber.index) + " " + kNames[static_cast<int>(fiber.state)];
  if (fiber.state == State::at_sync || fiber.state == State::at_shuffle) {
    text += " in line " + std::to_string(fiber.line);
  }
  return text;
}

bool same_place(const Fiber& a, const Fiber& b) { return a.state == b.state && a.line == b.line; }

// Hands every lane the value of its source; true if all 32 lanes had come to the same shuffle.
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

bool release_sync(int threads) {
  for (int i = 0; i < threads; ++i) {
    if (g_fibers[i]->state != State::at_sync) return false;
    if (!same_place(*g_fibers[i], *g_fibers[0])) return false;
  }
  for (int i = 0; i < threads; ++i) g_fibers[i]->state = State::ready;
  return true;
}

void poison(std::vector<Vector16>& memory) {
  if (memory.empty() || !g_options.poison_shared) return;
  std::memset(memory.data(), 0xff, memory.size() * sizeof(Vector16));
}

// Runs the threads of one warp until none can go on.
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

// Runs the threads in turns until all have exited; false on a deadlock.
bool run_block(std::vector<int>& order) {
  const int threads = static_cast<int>(order.size());
  for (auto& entry : g_block.shared) poison(entry.second);
  poison(g_block.dynamic);
  for (int i = 0; i < threads; ++i) g_fibers[i]->state = State::ready;
  for (;;) {
    if (g_options.order == Order::random) std::shuffle(order.begin(), order.end(), g_random);
    bool progress = false;
    if (g_options.order == Order::warps) {
      for (int i = 0; i < threads; i += kWarpThreads) progress |= run_warp(i, threads);
    }
    for (int i : order) {
      if (g_fibers[i]->state != State::ready) continue;
      resume(*g_fibers[i]);
      progress = true;
    }
    bool all_done = true;
    for (int i = 0; i < threads; ++i) all_done = all_done && g_fibers[i]->state == State::done;
    if (all_done) return true;
    for (int i = 0; i < threads; i += kWarpThreads) progress |= release_shuffle(i, threads);
    progress |= release_sync(threads);
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

Index block_index() { return g_block.index; }
Index block_count() { return g_block.count; }
int thread_index() { return g_current->index; }

void sync(int line) {
  g_current->state = State::at_sync;
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
  std::vector<Vector16>& memory = g_block.shared[key];
  if (memory.empty()) {
    memory.resize((bytes + 15) / 16);
    poison(memory);
  }
  return memory.data();
}

void* dynamic_shared() { return g_block.dynamic.data(); }

void check_alignment(const void* address, size_t alignment) {
  if (reinterpret_cast<uintptr_t>(address) % alignment != 0) fail("misaligned vector access");
}

const char* run(Grid grid, int threads, size_t dynamic_shared_bytes, void (*body)(const void*),
                const void* params) {
  ++g_launches;
  if (grid.x < 1 || grid.x > INT32_MAX || grid.y < 1 || grid.y > kMaxGridYZ || grid.z < 1 ||
      grid.z > kMaxGridYZ || threads < 1 || threads > 1024) {
    return "invalid configuration argument";
  }
  while (static_cast<int>(g_fibers.size()) < threads) {
    g_fibers.push_back(make_fiber(static_cast<int>(g_fibers.size())));
    if (g_fibers.back() == nullptr) {
      g_fibers.pop_back();
      return "out of memory for the emulator's stacks";
    }
  }
  g_random.seed(g_options.seed);
  std::vector<int> order(threads);
  std::iota(order.begin(), order.end(), 0);
  if (g_options.order == Order::reverse) std::reverse(order.begin(), order.end());
  g_block.count = {static_cast<uint32_t>(grid.x), static_cast<uint32_t>(grid.y),
                   static_cast<uint32_t>(grid.z)};
  g_block.body = body;
  g_block.params = params;
  g_block.shared.clear();
  g_block.dynamic.assign((dynamic_shared_bytes + 15) / 16, Vector16{});
  const int64_t blocks = grid.x * grid.y * grid.z;
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t block = g_options.order == Order::reverse ? blocks - 1 - i : i;
    g_block.index = {static_cast<uint32_t>(block % grid.x),
                     static_cast<uint32_t>(block / grid.x % grid.y),
                     static_cast<uint32_t>(block / grid.x / grid.y)};
    if (run_block(order)) continue;
    g_fibers.clear();  // the stuck stacks cannot be used again
    return nullptr;    // take_failure() tells
  }
  return nullptr;
}

}  // namespace bridge::simt::emulator
