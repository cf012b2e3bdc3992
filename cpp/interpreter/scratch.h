// The memory that a machine is given, in parts, for the files that are compiled once for each
// instruction set: include it there only.
#ifndef BRIDGE_INTERPRETER_SCRATCH_H_
#define BRIDGE_INTERPRETER_SCRATCH_H_

#include <stddef.h>
#include <stdint.h>

#include "interpreter/machine.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

// Each part begins a cache line. Of no memory at all, what is taken says how much there must be.
class Scratch {
 public:
  explicit Scratch(void* memory) : at_(aligned(reinterpret_cast<uintptr_t>(memory))) {}

  template <class T>
  T* take(int64_t count) {
    T* const part = reinterpret_cast<T*>(at_);
    at_ = aligned(at_ + static_cast<size_t>(count) * sizeof(T));
    return part;
  }
  size_t taken_of_none() const { return at_ + kAlignment; }

 private:
  static constexpr size_t kAlignment = 64;
  static uintptr_t aligned(uintptr_t at) { return (at + kAlignment - 1) / kAlignment * kAlignment; }

  uintptr_t at_;
};

// What a machine with memory of this kind needs for so many rows of a call.
template <class Memory>
size_t scratch_bytes(const interpreter::View& view, const bridge_program& call, int64_t rows) {
  Scratch none(nullptr);
  Memory(none, view, call, rows);
  return none.taken_of_none();
}

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_INTERPRETER_SCRATCH_H_
