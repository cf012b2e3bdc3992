#include "generated/cuda/kernels.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "cuda/last_error.h"
#include "cuda/shared_memory.h"
#include "cuda/simt.h"
#include "generated/cuda/verification.h"
#include "program/interpreter.h"
#include "program/interpreter_cuda.h"
#include "program/program_key.h"

namespace bridge::interpreter {
namespace {

constexpr const char* kName = "program";
using cuda::kMostSharedBytes;
using cuda::kSharedBytes;

struct Entry {
  int device;
  ProgramKey key;
  GeneratedKernels kernels;
};

// An entry keeps its address until bridge_program_cuda_forget().
std::shared_mutex mutex;
std::unordered_multimap<uint64_t, std::unique_ptr<const Entry>> entries;
std::atomic<bool> has_entries{false};

// Returns how often the warps or blocks of a row synchronize: after each section with a reduction.
int meetings_of(const View& view) {
  int found = 0;
  const Instruction* next = view.code;
  for (int32_t phase = 0; phase < view.header.phases; ++phase) {
    next += view.sections[2 * phase];
    const Instruction* const end = next + view.sections[2 * phase + 1];
    found += std::any_of(
        next, end, [](const Instruction& each) { return is_reduction(each.operation & ~kAgain); });
    next = end;
  }
  return found;
}

// Finds and verifies the kernels of an entry on the current device; returns "" or an error message.
std::string prepare(const bridge_program_kernels& given, const View& view, void* code,
                    Entry* entry) {
  if (!stages(simt::current_arch())) entry->kernels.facts.staged = 0;
  for (int32_t kind = 0; kind < kGeneratedKinds; ++kind) {
    if (!entry->kernels.facts.has(static_cast<GeneratedKernelKind>(kind))) continue;
    const char* error =
        simt::find_kernel(code, kGeneratedNames[kind], &entry->kernels.kernel[kind]);
    if (error != nullptr) return std::string(kGeneratedNames[kind]) + ": " + error;
    // Only the column sums of a leaf and the held chunks of long rows need more than the default.
    const bool holds = kind == kLongAligned && entry->kernels.facts.held > 0;
    size_t& shared_bytes = entry->kernels.shared_bytes[kind];
    shared_bytes = kSharedBytes;
    if ((holds || has_column_sums(view)) &&
        simt::allow_shared(entry->kernels.kernel[kind], kMostSharedBytes)) {
      shared_bytes = kMostSharedBytes;
    }
    if (holds) {  // of the limit set above
      const size_t beside = simt::shared_beside(entry->kernels.kernel[kind], kGeneratedThreads);
      entry->kernels.held_bytes = std::min(beside, shared_bytes);
    }
    const bool is_long = kind == kResidentAligned || kind == kLongAligned || kind == kLongAny;
    entry->kernels.most_blocks[kind] =
        is_long ? simt::most_in_cluster(entry->kernels.kernel[kind], kGeneratedThreads,
                                        shared_bytes, kMostBlocks)
                : 1;
  }
  const auto checked = [&](const GeneratedKernels& kernels) {
    return verify_on_device(
        view, entry->key.words, given.dtypes,
        [&](const bridge_program& call, void* workspace, size_t bytes, void* stream) {
          return run_program(call, workspace, bytes, stream, &kernels);
        });
  };
  // For each of these kinds, the comparison runs once more without it: its calls then go to the
  // other kernels. Some rows for these alone would be too long for a verification.
  GeneratedKernels kernels = entry->kernels;
  std::string wrong = checked(kernels);
  for (const GeneratedKernelKind kind : {kShortWhole, kWideAligned, kResidentAligned}) {
    if (!wrong.empty() || !kernels.facts.has(kind)) continue;
    kernels.facts.kinds &= ~(1 << kind);
    wrong = checked(kernels);
  }
  return wrong;
}

// Loads the kernels of an entry onto the current device; returns "" or an error message.
std::string load(const bridge_program_kernels& given, const View& view, Entry* entry) {
  // Constructed only once there is a current device, because the runtime would create a context.
  const simt::BesideCaptures beside;
  void* code = nullptr;
  if (const char* error = simt::load_code(given.image, &code)) return error;
  std::string wrong = prepare(given, view, code, entry);
  if (!wrong.empty()) simt::unload_code(code);
  return wrong;
}

// Returns true if an entry for the same program was added before, perhaps with other constants.
bool is_there(const Entry& entry) {
  const auto words = static_cast<int64_t>(entry.key.words.size());
  const std::shared_lock<std::shared_mutex> lock(mutex);
  const auto [begin, end] = entries.equal_range(hash_of(entry.key.words.data(), words));
  return std::any_of(begin, end, [&](const auto& each) {
    const Entry& other = *each.second;
    return other.device == entry.device && other.key.is_of(entry.key.words.data(), words) &&
           other.key.dtypes == entry.key.dtypes;
  });
}

bridge_status add(const bridge_program_kernels& given) {
  using cuda::fail;
  View view;
  const char* why = nullptr;
  if (!read(given.code, given.words, &view, &why))
    return fail(BRIDGE_INVALID_ARGUMENT, kName,
                (std::string("its bytecode cannot be read: ") + why).c_str());
  if (given.arrays != view.header.operands + view.header.results)
    return fail(BRIDGE_INVALID_ARGUMENT, kName, "another number of dtypes than of arrays");
  const int32_t vector = given.vector;
  if ((vector != 2 && vector != 4 && vector != 8) || given.cells < 0 || given.held < 0 ||
      given.staged < 0)
    return fail(BRIDGE_INVALID_ARGUMENT, kName, "kernels with vectors of another length");
  std::vector<int32_t> free(given.free, given.free + given.free_count);
  if (!are_constants(view, free))
    return fail(BRIDGE_INVALID_ARGUMENT, kName, "numbers of constants that it does not have");
  const int32_t constants = free.empty() ? 0 : free.back() + 1;
  auto entry = std::make_unique<Entry>(Entry{
      given.device, ProgramKey(view, given.code, given.words, given.dtypes, std::move(free)), {}});
  entry->kernels.facts = {given.vector, given.cells,  given.held,
                          given.kinds,  given.staged, constants};
  entry->kernels.meetings = meetings_of(view);
  if (is_there(*entry)) return BRIDGE_OK;
  int entered = -1;
  bool is_used = false;
  if (const char* error = simt::enter_device(given.device, &entered, &is_used))
    return fail(BRIDGE_UNAVAILABLE, kName, error);
  if (!is_used) return fail(BRIDGE_UNAVAILABLE, kName, "nothing uses the device yet");
  const std::string wrong = load(given, view, entry.get());
  simt::restore_current(entered);
  if (!wrong.empty()) return fail(BRIDGE_INTERNAL, kName, wrong.c_str());
  entry->kernels.are_added = true;
  const uint64_t hash = hash_of(given.code, given.words);
  const std::lock_guard<std::shared_mutex> lock(mutex);
  entries.emplace(hash, std::move(entry));
  has_entries.store(true, std::memory_order_release);
  return BRIDGE_OK;
}

}  // namespace

const GeneratedKernels* generated_kernels(const bridge_program& call, int device) {
  if (!has_entries.load(std::memory_order_acquire)) return nullptr;
  const uint64_t hash = hash_of(call.code, call.words);
  const std::shared_lock<std::shared_mutex> lock(mutex);
  const auto [begin, end] = entries.equal_range(hash);
  for (auto each = begin; each != end; ++each) {
    const Entry& entry = *each->second;
    if (entry.device == device && entry.key.is_of(call)) return &entry.kernels;
  }
  return nullptr;
}

}  // namespace bridge::interpreter

extern "C" BRIDGE_EXPORT bridge_status
bridge_program_cuda_add(const bridge_program_kernels* kernels) {
  try {
    return bridge::interpreter::add(*kernels);
  } catch (const std::bad_alloc&) {
    return bridge::cuda::fail(BRIDGE_OUT_OF_MEMORY, "program", "no memory to add its kernels");
  }
}

// The code of the kernels stays loaded: unloading it needs the context of its device.
extern "C" BRIDGE_EXPORT void bridge_program_cuda_forget(void) {
  using namespace bridge::interpreter;  // NOLINT
  const std::lock_guard<std::shared_mutex> lock(mutex);
  has_entries.store(false, std::memory_order_release);
  entries.clear();
}
