#include "generated/cpu/programs.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "cpu/error.h"
#include "cpu/isa.h"
#include "generated/cpu/ahead_of_time.h"
#include "generated/cpu/check.h"
#include "program/interpreter.h"
#include "program/program_key.h"

namespace bridge::interpreter {
namespace {

enum class Verdict { unknown, right, wrong };

struct Entry {
  uint64_t hash;
  ProgramKey key;
  const MachineTable* machine;
  std::vector<int32_t> dtypes;  // as in the arrays: of operands, then of results
  mutable std::atomic<Verdict> verdict;
};

// Readers take no lock: an entry keeps its place once it is in a table, and a table may be read
// while a larger one is made. Both live until forget().
struct Table {
  explicit Table(size_t size) : slots(size) {}
  std::vector<std::atomic<const Entry*>> slots;  // a power of two, at most half of them taken

  void put(const Entry& entry) {
    size_t at = entry.hash & (slots.size() - 1);
    while (slots[at].load(std::memory_order_relaxed) != nullptr) at = (at + 1) & (slots.size() - 1);
    slots[at].store(&entry, std::memory_order_release);
  }
};

// The programs compiled for one instruction set. Small calls run on another set than large ones,
// and need not hash their bytecode if nothing was compiled for that set.
struct Compiled {
  std::vector<std::unique_ptr<Entry>> entries;
  std::vector<std::unique_ptr<Table>> tables;
  std::atomic<const Table*> table{nullptr};  // the newest one

  void add(std::unique_ptr<Entry> entry) {
    entries.push_back(std::move(entry));
    if (!tables.empty() && 2 * entries.size() <= tables.back()->slots.size())
      return tables.back()->put(*entries.back());
    const size_t size = tables.empty() ? 64 : 2 * tables.back()->slots.size();
    tables.push_back(std::make_unique<Table>(size));
    for (const auto& each : entries) tables.back()->put(*each);
    table.store(tables.back().get(), std::memory_order_release);
  }
  void forget() {
    table.store(nullptr, std::memory_order_release);
    tables.clear();
    entries.clear();
  }
};

std::mutex mutex, verifying;
Compiled compiled[kIsas];
std::atomic<int64_t> calls{0}, rejected{0};

// Returns true if a machine of the build has the interpreter's bits on this processor. The first
// call verifies it: the machine that built it may have been another one. A wrong machine is not
// called, and stderr tells of it once.
bool is_verified(const Entry& entry, int isa) {
  const std::lock_guard<std::mutex> lock(verifying);
  const Verdict before = entry.verdict.load(std::memory_order_acquire);
  if (before != Verdict::unknown) return before == Verdict::right;
  const auto& words = entry.key.words;
  View view;
  const char* why = nullptr;
  if (!read(words.data(), static_cast<int64_t>(words.size()), &view, &why)) return false;
  const bridge_status status =
      check_generated(view, words, entry.dtypes.data(), isa, *entry.machine);
  if (status == BRIDGE_OUT_OF_MEMORY) return false;  // a later call tries again
  if (status != BRIDGE_OK) {
    rejected.fetch_add(1, std::memory_order_relaxed);
    fprintf(stderr,
            "bridge: a kernel of this build is wrong on this processor (%s), so the interpreter "
            "runs its calls, with the right bits but slower: %s\n",
            bridge_cpu_isas()[isa], bridge_last_error());
  }
  entry.verdict.store(status == BRIDGE_OK ? Verdict::right : Verdict::wrong,
                      std::memory_order_release);
  return status == BRIDGE_OK;
}

}  // namespace

const MachineTable* generated_machine(const bridge_program& call, int isa,
                                      const KnownProgram* known) {
  const Table* const found = compiled[isa].table.load(std::memory_order_acquire);
  if (found == nullptr) return nullptr;
  const size_t mask = found->slots.size() - 1;
  const uint64_t hash = known != nullptr ? known->hash : hash_of(call.code, call.words);
  for (size_t at = hash & mask;; at = (at + 1) & mask) {
    const Entry* const entry = found->slots[at].load(std::memory_order_acquire);
    if (entry == nullptr) return nullptr;
    if (entry->hash != hash || !entry->key.is_of(call)) continue;
    if (entry->verdict.load(std::memory_order_acquire) != Verdict::right &&
        !is_verified(*entry, isa))
      return nullptr;
    calls.fetch_add(1, std::memory_order_relaxed);
    return entry->machine;
  }
}

namespace {

std::unique_ptr<Entry> entry_of(const View& view, const int32_t* words, int64_t count,
                                const int32_t* dtypes, const MachineTable* machine,
                                std::vector<int32_t> free, Verdict verdict) {
  const int32_t arrays = view.header.operands + view.header.results;
  return std::unique_ptr<Entry>(new Entry{hash_of(words, count),
                                          ProgramKey(view, words, count, dtypes, std::move(free)),
                                          machine,
                                          std::vector<int32_t>(dtypes, dtypes + arrays),
                                          {verdict}});
}

// Adds the programs compiled ahead of time, before the first call; false if memory runs out.
const bool has_hot = [] {
  try {
    const AheadOfTimePrograms hot = ahead_of_time_programs();
    for (int i = 0; i < hot.count; ++i) {
      const AheadOfTimeProgram& own = hot.programs[i];
      View view;
      const char* why = nullptr;
      if (!read(own.words, own.count, &view, &why)) continue;
      for (int isa = 0; isa < kIsas; ++isa) {
        if (own.machine[isa] != nullptr)
          compiled[isa].add(entry_of(view, own.words, own.count, own.dtypes, own.machine[isa],
                                     {own.free, own.free + own.free_count}, Verdict::unknown));
      }
    }
  } catch (const std::bad_alloc&) {
    return false;
  }
  return true;
}();

}  // namespace

bool has_generated(const int32_t* words, int64_t count, const int32_t* dtypes, int64_t arrays,
                   int isa) {
  View view;
  const char* why = nullptr;
  if (!read(words, count, &view, &why) || arrays != view.header.operands + view.header.results) {
    return false;
  }
  const ProgramKey wanted(view, words, count, dtypes);
  const std::lock_guard<std::mutex> lock(mutex);
  for (const auto& entry : compiled[isa].entries) {
    if (entry->key.is_of(words, count) && entry->key.dtypes == wanted.dtypes) return true;
  }
  return false;
}

bridge_status add_generated(const int32_t* words, int64_t count, const int32_t* dtypes,
                            int64_t arrays, std::vector<int32_t> free, const char* isa,
                            const char* library) {
  View view;
  const char* why = nullptr;
  if (!read(words, count, &view, &why))
    return fail(BRIDGE_INVALID_ARGUMENT, "program: its bytecode cannot be read: %s", why);
  if (arrays != view.header.operands + view.header.results)
    return fail(BRIDGE_INVALID_ARGUMENT, "program: %d dtypes, expected %d",
                static_cast<int>(arrays), view.header.operands + view.header.results);
  if (!are_constants(view, free))
    return fail(BRIDGE_INVALID_ARGUMENT, "program: numbers of constants that it does not have");
  int number = 0;
  const char* const* const names = bridge_cpu_isas();
  while (names[number] != nullptr && strcmp(names[number], isa) != 0) ++number;
  if (names[number] == nullptr)
    return fail(BRIDGE_INVALID_ARGUMENT, "program: no instruction set %.64s", isa);
  void* const handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return fail(BRIDGE_INVALID_ARGUMENT, "program: %.400s", dlerror());
  using Machine = const void* (*)();
  void* const symbol = dlsym(handle, "bridge_machine");
  const auto machine = reinterpret_cast<Machine>(symbol);
  if (machine == nullptr) {
    dlclose(handle);
    return fail(BRIDGE_INVALID_ARGUMENT, "program: no machine in %.400s", library);
  }
  auto entry = entry_of(view, words, count, dtypes, static_cast<const MachineTable*>(machine()),
                        std::move(free), Verdict::right);
  const bridge_status status =
      check_generated(view, entry->key.words, dtypes, number, *entry->machine);
  if (status != BRIDGE_OK) {
    dlclose(handle);
    return status;
  }
  const std::lock_guard<std::mutex> lock(mutex);
  compiled[number].add(std::move(entry));
  return BRIDGE_OK;
}

int64_t generated_calls() { return calls.load(std::memory_order_relaxed); }

int64_t rejected_programs() { return rejected.load(std::memory_order_relaxed); }

void forget_generated() {
  const std::lock_guard<std::mutex> lock(mutex);
  for (Compiled& each : compiled) each.forget();
}

}  // namespace bridge::interpreter
