#include "cpu/isa.h"

#include <stdlib.h>
#include <string.h>

#include <atomic>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "cpu/error.h"

namespace bridge {
namespace {

#if defined(__x86_64__)

const char* const kNames[] = {"x86-64-v4", "x86-64-v3", "x86-64", nullptr};

// The answers of cpuid that name the features of both sets, and the registers that the operating
// system saves (xgetbv). The compilers' own tests answer "no" to everything with some runtimes.
struct Features {
  unsigned basic = 0;     // leaf 1, ecx
  unsigned wide = 0;      // leaf 7, ebx
  unsigned extended = 0;  // leaf 0x80000001, ecx
  unsigned saved = 0;     // extended control register 0

  Features() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0) basic = ecx;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0) wide = ebx;
    if (__get_cpuid(0x80000001, &eax, &ebx, &ecx, &edx) != 0) extended = ecx;
    constexpr unsigned kSaves = 1U << 27;  // xgetbv is there
    if ((basic & kSaves) != 0) __asm__("xgetbv" : "=a"(saved), "=d"(edx) : "c"(0));
  }
};

bool has(unsigned bits, unsigned wanted) { return (bits & wanted) == wanted; }

bool is_supported(int isa) {
  static const Features cpu;
  constexpr unsigned kFma = 1U << 12, kMovbe = 1U << 22, kPopcnt = 1U << 23, kAvx = 1U << 28;
  constexpr unsigned kF16c = 1U << 29, kBmi = 1U << 3, kAvx2 = 1U << 5, kBmi2 = 1U << 8;
  constexpr unsigned kLzcnt = 1U << 5, kYmm = 0x6, kZmm = 0xe6;
  constexpr unsigned kAvx512 = 1U << 16 | 1U << 17 | 1U << 28 | 1U << 30 | 1U << 31;
  if (isa == 2) return true;
  const bool has_v3 = has(cpu.basic, kFma | kMovbe | kPopcnt | kAvx | kF16c) &&
                      has(cpu.wide, kBmi | kAvx2 | kBmi2) && has(cpu.extended, kLzcnt) &&
                      has(cpu.saved, kYmm);
  return isa == 1 ? has_v3 : has_v3 && has(cpu.wide, kAvx512) && has(cpu.saved, kZmm);
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
