// The description of an op for the native module: one row of one table, which calls from Python and
// from XLA both read.
//
// An op is described by a traits struct:
//
//   using Bound;                      // the C struct, or LoopedCall of it: see row_binding.h
//   static constexpr OpCounts kCounts;
//   static bool bind(const Arguments&, Bound*, CallError*);  // false: sets *error
//   static int64_t elements(const Bound&);           // of the largest array
//   static bridge_status run_on_cpu(const <C struct>*, const bridge_executor*);
//   using CudaWorkspace, CudaRun;                // types of the entry points in the CUDA library
#ifndef BRIDGE_BINDINGS_CALLS_OP_H_
#define BRIDGE_BINDINGS_CALLS_OP_H_

#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>

#include "bindings/calls/operand.h"

namespace bridge::interpreter {
struct KnownProgram;
}

namespace bridge::bindings {

constexpr size_t kMaxOperands = BRIDGE_MAX_PROGRAM_OPERANDS;
constexpr size_t kMaxResults = BRIDGE_MAX_PROGRAM_RESULTS;
constexpr size_t kMaxAttributes = 8;

// The bytecode of a program (program/program.h), for the op that runs any program. `known` is
// the checked program, if a cache has it.
struct Code {
  const int32_t* words = nullptr;
  int64_t count = 0;
  const interpreter::KnownProgram* known = nullptr;
};

// The arguments of a call, by position. An absent argument has an entry that is not `present`.
struct Arguments {
  const Operand* operands;
  size_t operand_count;
  const Operand* results;
  size_t result_count;
  const double* attributes;
  size_t attribute_count;
  bool results_are_fresh = false;  // nothing else can lie in their memory
  Code code = {};

  // Returns operand i. The operands after the last given one are absent.
  const Operand& operand(size_t i) const {
    static const Operand absent;
    return i < operand_count ? operands[i] : absent;
  }
};

constexpr size_t kAsInCode = 0;

struct OpCounts {
  const char* name;
  size_t min_operands, max_operands;
  size_t results;  // kAsInCode: as many as the call has
  size_t attributes;
};

// Two entry points of the CUDA library, cast to the types that the op knows; nullptr if the library
// lacks one.
struct CudaEntry {
  void* workspace = nullptr;
  void* run = nullptr;
};

// Storage for the C struct of any op. It is not cleared: clearing unused bytes would cost a tiny
// call more than everything else.
constexpr size_t kMaxCallBytes = 10240;
struct CallStorage {
  alignas(16) unsigned char bytes[kMaxCallBytes];
};

struct Op {
  OpCounts counts;
  bool (*bind)(const Arguments& arguments, CallStorage* call, CallError* error);
  int64_t (*elements)(const CallStorage& call);
  bridge_status (*run_on_cpu)(const CallStorage& call, const bridge_executor* executor);
  size_t (*workspace_on_cuda)(const CudaEntry& entry, const CallStorage& call);
  bridge_status (*run_on_cuda)(const CudaEntry& entry, const CallStorage& call, void* workspace,
                               size_t bytes, void* stream);
};

constexpr size_t kOpCount = 1;
extern const Op* const kOps[kOpCount];

// Returns the op of this name; nullptr if there is none.
const Op* find_op(const char* name);

// Checks the numbers of operands, results and attributes, then calls the op's own bind.
bool bind(const Op& op, const Arguments& arguments, CallStorage* call, CallError* error);

// Returns true if an op runs a bytecode.
inline bool has_code(const Op& op) { return op.counts.results == kAsInCode; }

// Returns true if an op can have `count` results.
inline bool can_have_results(const Op& op, size_t count) {
  return has_code(op) ? count <= kMaxResults : count == op.counts.results;
}

bool not_whole(const char* name, double value, double lowest, double highest, CallError* error);

// Reads an attribute that must be a whole number from `lowest` to `highest`. Integer holds all of
// these.
template <class Integer>
bool read_whole(const char* name, double value, double lowest, double highest, Integer* out,
                CallError* error) {
  if (value >= lowest && value <= highest) {  // false for NaN
    *out = static_cast<Integer>(value);
    if (static_cast<double>(*out) == value) return true;
  }
  return not_whole(name, value, lowest, highest, error);
}

bool read_finite(const char* name, double value, double* out, CallError* error);

constexpr double kExactHighest = 9007199254740992.0;  // 2^53: exact for whole numbers up to it

// Calls kernel(C struct) for a call. The overload for LoopedCall may call it several times.
template <class Bound, class Kernel>
bridge_status for_each_kernel_call(const Bound& call, Kernel kernel) {
  return kernel(&call);
}

template <class Bound>
const Bound& get(const CallStorage& storage) {
  return *std::launder(reinterpret_cast<const Bound*>(storage.bytes));
}

template <class Traits>
constexpr Op make_op() {
  using Bound = typename Traits::Bound;
  static_assert(sizeof(Bound) <= kMaxCallBytes && alignof(Bound) <= alignof(CallStorage));
  static_assert(std::is_trivially_destructible_v<Bound>);
  Op op{};
  op.counts = Traits::kCounts;
  op.bind = [](const Arguments& arguments, CallStorage* storage, CallError* error) {
    return Traits::bind(arguments, new (storage->bytes) Bound, error);
  };
  op.elements = [](const CallStorage& storage) { return Traits::elements(get<Bound>(storage)); };
  op.run_on_cpu = [](const CallStorage& storage, const bridge_executor* executor) {
    return for_each_kernel_call(
        get<Bound>(storage), [=](const auto* call) { return Traits::run_on_cpu(call, executor); });
  };
  op.workspace_on_cuda = [](const CudaEntry& entry, const CallStorage& storage) {
    const auto ask = reinterpret_cast<typename Traits::CudaWorkspace>(entry.workspace);
    size_t most = 0;
    for_each_kernel_call(get<Bound>(storage), [&](const auto* call) {
      const size_t bytes = ask(call);
      most = bytes > most ? bytes : most;
      return BRIDGE_OK;
    });
    return most;
  };
  op.run_on_cuda = [](const CudaEntry& entry, const CallStorage& storage, void* workspace,
                      size_t bytes, void* stream) {
    const auto run = reinterpret_cast<typename Traits::CudaRun>(entry.run);
    // Calls of one stream run one after the other: they can share the workspace.
    return for_each_kernel_call(
        get<Bound>(storage), [=](const auto* call) { return run(call, workspace, bytes, stream); });
  };
  return op;
}

}  // namespace bridge::bindings

#endif  // BRIDGE_BINDINGS_CALLS_OP_H_
