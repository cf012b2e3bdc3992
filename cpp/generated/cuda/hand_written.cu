#include "generated/cuda/hand_written.h"

#include <cstdio>

#include <atomic>
#include <mutex>
#include <new>
#include <set>
#include <utility>
#include <vector>

#include "cuda/last_error.h"
#include "cuda/simt.h"
#include "generated/cuda/verification.h"
#include "program/interpreter.h"
#include "program/interpreter_cuda.h"
#include "program/program_key.h"

namespace bridge::interpreter {
namespace {

struct Entry {
  uint64_t hash;
  ProgramKey key;
  const HandKernel* kernel;
  int number;  // of the program
};

std::vector<Entry> all_entries() {
  std::vector<Entry> entries;
  const HandWrittenPrograms all = hand_written_programs();
  for (int i = 0; i < all.count; ++i) {
    const HandWrittenProgram& own = all.programs[i];
    View view;
    const char* why = nullptr;
    if (!read(own.words, own.count, &view, &why)) continue;
    std::vector<int32_t> parameters;
    for (int32_t p = 0; p < own.parameters; ++p) parameters.push_back(p);
    entries.push_back({hash_of(own.words, own.count),
                       ProgramKey(view, own.words, own.count, own.dtypes, parameters), own.kernel,
                       i});
  }
  return entries;
}

std::atomic<int64_t> calls{0};

// Programs whose kernels are wrong on a device: ordinarily none, and then no call takes the lock.
std::mutex mutex;
std::set<std::pair<int, int>> rejected;  // device and program
std::atomic<bool> has_rejected{false};

bool is_rejected(const Entry& entry) {
  if (!has_rejected.load(std::memory_order_acquire)) return false;
  const std::lock_guard<std::mutex> lock(mutex);
  return rejected.count({simt::current_device(), entry.number}) != 0;
}

}  // namespace

const HandKernel* hand_kernel(const bridge_program& call, const View& view) {
  static const std::vector<Entry> entries = all_entries();
  const uint64_t hash = hash_of(call.code, call.words);
  for (const Entry& entry : entries) {
    if (entry.hash != hash || !entry.key.is_of(call) || !entry.kernel->takes(call, view)) continue;
    if (is_rejected(entry)) return nullptr;
    calls.fetch_add(1, std::memory_order_relaxed);
    return entry.kernel;
  }
  return nullptr;
}

const char* load_hand_kernels() {
  const HandWrittenPrograms all = hand_written_programs();
  std::set<const HandKernel*> kernels;  // a kernel serves several programs
  for (int i = 0; i < all.count; ++i) kernels.insert(all.programs[i].kernel);
  for (const HandKernel* kernel : kernels) {
    if (const char* error = kernel->load()) return error;
  }
  return nullptr;
}

bridge_status enqueue_by_hand(const HandKernel& kernel, const bridge_program& call,
                              const View& view, void* stream) {
  const Counts counts = counts_of(call);
  if (counts.batches == 0 || counts.rows == 0) return BRIDGE_OK;
  const char* error = kernel.enqueue(call, view, stream);
  return error == nullptr ? BRIDGE_OK : cuda::fail(BRIDGE_CUDA_ERROR, "program", error);
}

std::string verified_by_hand(const HandWrittenProgram& program) {
  View view;
  const char* why = nullptr;
  if (!read(program.words, program.count, &view, &why)) return why;
  const std::vector<int32_t> words(program.words, program.words + program.count);
  return verify_on_device(
      view, words, program.dtypes,
      [&](const bridge_program& call, void* workspace, size_t bytes, void* stream) {
        return program.kernel->takes(call, view)
                   ? enqueue_by_hand(*program.kernel, call, view, stream)
                   : run_program(call, workspace, bytes, stream, nullptr);
      });
}

void verify_hand_kernels(int device) {
  const simt::BesideCaptures beside;
  const HandWrittenPrograms all = hand_written_programs();
  for (int i = 0; i < all.count; ++i) {
    std::string wrong;
    try {
      wrong = verified_by_hand(all.programs[i]);
    } catch (const std::bad_alloc&) {
      continue;  // no sign of a fault
    }
    if (wrong.empty()) continue;
    fprintf(stderr,
            "bridge: a kernel written by hand is not used on CUDA device %d; other kernels run its "
            "calls, with the right bits but slower: %s\n",
            device, wrong.c_str());
    const std::lock_guard<std::mutex> lock(mutex);
    rejected.insert({device, i});
    has_rejected.store(true, std::memory_order_release);
  }
}

int64_t hand_kernel_calls() { return calls.load(std::memory_order_relaxed); }

}  // namespace bridge::interpreter
