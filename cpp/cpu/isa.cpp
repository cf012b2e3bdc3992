#include "cpu/isa.h"

#include <stdlib.h>
#include <string.h>

#include <atomic>

#include "cpu/error.h"

namespace bridge {
namespace {

// The builtins read cpuid and check that the operating system saves the wide registers.
#if defined(__x86_64__)

const char* const kNames[] = {"x86-64-v4", "x86-64-v3", "x86-64", nullptr};

bool has_v3() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("lzcnt") &&
         __builtin_cpu_supports("movbe") && __builtin_cpu_supports("popcnt");
}

bool is_supported(int isa) {
  __builtin_cpu_init();
  if (isa == 0)
    return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
  return isa == 2 || has_v3();
}

#else

const char* const kNames[] = {"aarch64", nullptr};

bool is_supported(int) { return true; }

#endif

static_assert(sizeof kNames / sizeof kNames[0] == kIsas + 1, "one name for each instruction set");

int strongest() {
  for (int isa = 0; isa < kIsas; ++isa)
    if (is_supported(isa)) return isa;
  return kIsas - 1;
}

// Returns the index of a supported instruction set, or -1 after writing the error message.
int find(const char* name, const char* asked_by) {
  for (int isa = 0; isa < kIsas; ++isa)
    if (strcmp(name, kNames[isa]) == 0 && is_supported(isa)) return isa;
  char supported[64] = "";
  for (int isa = 0; isa < kIsas; ++isa) {
    if (!is_supported(isa)) continue;
    if (supported[0] != '\0') strcat(supported, ", ");
    strcat(supported, kNames[isa]);
  }
  fail(BRIDGE_INVALID_ARGUMENT, "%s is '%.64s', expected one of: %s", asked_by, name, supported);
  return -1;
}

// Measured around tiny calls from an interpreter: with v4, everything after the call ran a
// microsecond or two longer.
constexpr int64_t kWideFrom = 2048;

constexpr int kUnknown = -2;
std::atomic<int> set_by_call{kUnknown};
std::atomic<int> set_by_environment{kUnknown};
std::atomic<bool> named_by_environment{false};

// Returns -1 if the environment names no supported instruction set. Messages are per thread, so
// every call writes its own.
int from_environment() {
  const char* name = getenv("BRIDGE_CPU_ISA");
  if (name == nullptr || name[0] == '\0') return strongest();
  named_by_environment.store(true, std::memory_order_relaxed);
  return find(name, "the environment variable BRIDGE_CPU_ISA");
}

}  // namespace

int isa_in_use() {
  const int set = set_by_call.load(std::memory_order_relaxed);
  if (set >= 0) return set;
  int isa = set_by_environment.load(std::memory_order_relaxed);
  if (isa < 0) {
    isa = from_environment();
    set_by_environment.store(isa, std::memory_order_relaxed);
  }
  return isa;
}

int isa_for(int64_t elements) {
  const int isa = isa_in_use();
  const bool is_named = set_by_call.load(std::memory_order_relaxed) >= 0 ||
                        named_by_environment.load(std::memory_order_relaxed);
  // Index 0 of several is x86-64-v4, which implies the next set.
  return kIsas > 1 && isa == 0 && elements < kWideFrom && !is_named ? 1 : isa;
}

}  // namespace bridge

extern "C" {

const char* const* bridge_cpu_isas(void) { return bridge::kNames; }

const char* bridge_cpu_isa(void) {
  const int isa = bridge::isa_in_use();
  return bridge::kNames[isa < 0 ? bridge::strongest() : isa];
}

bridge_status bridge_set_cpu_isa(const char* name) {
  if (name == nullptr) {
    bridge::set_by_call.store(bridge::kUnknown, std::memory_order_relaxed);
    return BRIDGE_OK;
  }
  const int isa = bridge::find(name, "the instruction set");
  if (isa < 0) return BRIDGE_INVALID_ARGUMENT;
  bridge::set_by_call.store(isa, std::memory_order_relaxed);
  return BRIDGE_OK;
}

}  // extern "C"
