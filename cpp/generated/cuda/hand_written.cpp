#include "generated/cuda/hand_written.h"

#include <atomic>
#include <set>
#include <vector>

#include "program/program_key.h"

namespace bridge::interpreter {
namespace {

struct Entry {
  uint64_t hash;
  ProgramKey key;
  const HandKernel* kernel;
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
                       ProgramKey(view, own.words, own.count, own.dtypes, parameters), own.kernel});
  }
  return entries;
}

std::atomic<int64_t> calls{0};

}  // namespace

const HandKernel* hand_kernel(const bridge_program& call, const View& view) {
  static const std::vector<Entry> entries = all_entries();
  const uint64_t hash = hash_of(call.code, call.words);
  for (const Entry& entry : entries) {
    if (entry.hash != hash || !entry.key.is_of(call) || !entry.kernel->takes(call, view)) continue;
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

int64_t hand_kernel_calls() { return calls.load(std::memory_order_relaxed); }

}  // namespace bridge::interpreter
