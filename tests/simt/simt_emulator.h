// The block and warp interface of cpp/cuda/simt.h on the host. Every thread of a block, or of a
// cluster of blocks, is a fiber; fibers run one after another. On a machine without a GPU, the
// emulator detects mistakes that a GPU would not report: barriers and shuffles that some threads do
// not reach, reads of unwritten shared memory, writes to the shared memory of a block that has not
// begun or has ended, and results that depend on the order of threads.
#ifndef BRIDGE_TESTS_SIMT_SIMT_EMULATOR_H_
#define BRIDGE_TESTS_SIMT_SIMT_EMULATOR_H_

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cuda/simt.h"

#define BRIDGE_DEVICE inline

namespace bridge::simt {

// These limits are so low that small sizes reach the loops of kernels whose grid does not cover the
// call. (A larger extent in x runs too.)
constexpr int64_t kMaxGridX = 13;
constexpr int64_t kMaxGridYZ = 3;
constexpr int kArch = 90;
constexpr int64_t kMultiprocessors = 1;
constexpr int64_t kCachedBytes = int64_t{300} << 10;
constexpr int64_t kRowBytes = int64_t{20} << 10;
constexpr int64_t kManyLeaves = 2;
constexpr int64_t kManyElements = 4000;
constexpr int kMostInCluster = 8;

namespace emulator {

enum class Order { forward, reverse, random, warps };

struct Options {
  // The order in which the threads of a block take turns; `reverse` also reverses the blocks. With
  // `warps`, each warp runs alone up to its next barrier, as far ahead of the others as a GPU
  // allows, and so does each block of a cluster.
  Order order = Order::forward;
  uint64_t seed = 0;
  bool poison_shared = true;  // shared memory starts as NaN in every format
};

Options& options();

// Returns the error since the last call, or "". A launch after a failure still runs.
std::string take_failure();
int64_t launches();

// The functions that the running thread calls.
Index block_index();
Index block_count();
int thread_index();
int cluster_rank();
void sync(int line);
void sync_cluster(int line);
void shuffle(void* value, size_t bytes, int source_lane, int line);
void* shared(const void* key, size_t bytes);
void* dynamic_shared();
// Returns the address in another block's dynamic shared memory for bytes of the calling thread's.
void* in_cluster(void* own, size_t bytes, int rank);
void fail(const std::string& message);
void check_alignment(const void* address, size_t alignment);

const char* run(Grid grid, int threads, size_t dynamic_shared_bytes, void (*body)(const void*),
                const void* params);

}  // namespace emulator

inline Index block_index() { return emulator::block_index(); }
inline Index block_count() { return emulator::block_count(); }
inline int thread_index() { return emulator::thread_index(); }
inline int cluster_rank() { return emulator::cluster_rank(); }

// The caller's line identifies a barrier: threads that meet at different lines have diverged.
inline void sync(int line = __builtin_LINE()) { emulator::sync(line); }
inline void sync_cluster(int line = __builtin_LINE()) { emulator::sync_cluster(line); }
inline void arrive_at_cluster() {}
inline void wait_for_cluster(int line = __builtin_LINE()) { emulator::sync_cluster(line); }

template <class T>
void store_in_cluster(T* own, int rank, T value) {
  void* const there = emulator::in_cluster(own, sizeof value, rank);
  if (there != nullptr) std::memcpy(there, &value, sizeof value);
}

template <class T>
T shuffle(T value, int lane, int line = __builtin_LINE()) {
  emulator::shuffle(&value, sizeof value, lane, line);
  return value;
}

template <class T>
T shuffle_xor(T value, int mask, int line = __builtin_LINE()) {
  emulator::shuffle(&value, sizeof value, (thread_index() % kWarpThreads) ^ mask, line);
  return value;
}

inline int sum_in_warp(int value, int line = __builtin_LINE()) {
  for (int mask = kWarpThreads / 2; mask > 0; mask /= 2) value += shuffle_xor(value, mask, line);
  return value;
}

template <class T>
T* found_global(T* pointer) {
  return pointer;
}
template <class T>
T* found_shared(T* pointer) {
  return pointer;
}
inline float chosen(uint32_t bits, float a, float b) { return bits != 0 ? a : b; }
inline uint32_t unknown(uint32_t value) { return value; }
inline int64_t unknown(int64_t value) { return value; }
inline void rarely() {}
inline void sync_warp(int line = __builtin_LINE()) {
  char nothing = 0;
  emulator::shuffle(&nothing, sizeof nothing, thread_index() % kWarpThreads, line);
}

template <class T, int kCount, int kTag = 0>
T* shared_array() {
  static const char key = 0;
  return static_cast<T*>(emulator::shared(&key, sizeof(T) * kCount));
}

template <class T>
T* dynamic_shared() {
  return static_cast<T*>(emulator::dynamic_shared());
}

template <class Word>
Word load_word(const void* address) {
  emulator::check_alignment(address, sizeof(Word));
  Word value;
  std::memcpy(&value, address, sizeof value);
  return value;
}

template <class Word>
void store_word(void* address, Word value) {
  emulator::check_alignment(address, sizeof(Word));
  std::memcpy(address, &value, sizeof value);
}

inline Vector16 load16(const void* address) {
  emulator::check_alignment(address, 16);
  Vector16 value;
  std::memcpy(&value, address, sizeof value);
  return value;
}

inline void store16(void* address, Vector16 value) {
  emulator::check_alignment(address, 16);
  std::memcpy(address, &value, sizeof value);
}

inline void store16_whole(void* address, Vector16 value) { store16(address, value); }

template <class Kernel>
const char* launch(Grid grid, size_t dynamic_shared_bytes, void* /*stream*/,
                   const typename Kernel::Params& params) {
  static_assert(Kernel::kThreads % kWarpThreads == 0);
  return emulator::run(
      grid, grid.threads > 0 ? grid.threads : Kernel::kThreads, dynamic_shared_bytes,
      [](const void* p) { Kernel::run(*static_cast<const typename Kernel::Params*>(p)); }, &params);
}

template <class Kernel>
int most_in_cluster(size_t /*dynamic_shared_bytes*/, int most) {
  return most < kMostInCluster ? most : kMostInCluster;
}

template <class Kernel>
const char* load() {
  return nullptr;
}

inline const char* make_current(const void* /*memory*/, int* entered) {
  *entered = -1;
  return nullptr;
}

inline void restore_current(int /*entered*/) {}

// The image of code is a table of its kernels, with a null name at the end.
struct EmulatedKernel {
  const char* name;
  void (*body)(const void* params);
};

inline const char* enter_device(int device, int* entered, bool* is_used) {
  *entered = -1;
  *is_used = device == 0;
  return nullptr;
}

inline int current_device() { return 0; }
inline int current_arch() { return kArch; }

inline const char* load_code(const void* image, void** code) {
  *code = const_cast<void*>(image);
  return image == nullptr ? "no image" : nullptr;
}

inline void unload_code(void* /*code*/) {}

inline const char* find_kernel(void* code, const char* name, void** kernel) {
  for (auto* each = static_cast<EmulatedKernel*>(code); each->name != nullptr; ++each) {
    *kernel = each;
    if (std::strcmp(each->name, name) == 0) return nullptr;
  }
  return "named symbol not found";
}

inline const char* launch_found(void* kernel, Grid grid, size_t dynamic_shared_bytes,
                                void* /*stream*/, const void* params) {
  return emulator::run(grid, grid.threads, dynamic_shared_bytes,
                       static_cast<EmulatedKernel*>(kernel)->body, params);
}

inline bool allow_shared(void* /*kernel*/, size_t bytes) { return bytes <= size_t{99} << 10; }

// Less than the data of rows of many chunks, so that only a part of them stays there.
inline size_t shared_beside(void* /*kernel*/, int /*threads*/) { return size_t{40} << 10; }

inline int most_in_cluster(void* /*kernel*/, int /*threads*/, size_t /*dynamic_shared_bytes*/,
                           int most) {
  return most < kMostInCluster ? most : kMostInCluster;
}

struct BesideCaptures {
  BesideCaptures() {}
};

struct Scratch {
  char* take(size_t bytes) {
    pieces_.emplace_back(new char[bytes + 1]);
    return pieces_.back().get();
  }
  const char* copy(void* to, const void* from, size_t bytes) const {
    std::memcpy(to, from, bytes);
    return nullptr;
  }
  const char* wait() const { return nullptr; }

  const char* why = nullptr;
  void* stream = nullptr;

 private:
  std::vector<std::unique_ptr<char[]>> pieces_;
};

}  // namespace bridge::simt

#endif  // BRIDGE_TESTS_SIMT_SIMT_EMULATOR_H_
