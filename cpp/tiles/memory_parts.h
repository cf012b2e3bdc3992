// The parts of a machine's scratch memory. Include it only in files compiled once for each
// instruction set.
#ifndef BRIDGE_TILES_MEMORY_PARTS_H_
#define BRIDGE_TILES_MEMORY_PARTS_H_

#include <stddef.h>
#include <stdint.h>

#include "program/machine.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

// Each part begins at a cache line. Parts of null memory must not be used: they only measure how
// many bytes are needed.
class MemoryParts {
 public:
  explicit MemoryParts(void* memory) : at_(aligned(reinterpret_cast<uintptr_t>(memory))) {}

  template <class T>
  T* take(int64_t count) {
    T* const part = reinterpret_cast<T*>(at_);
    at_ = aligned(at_ + static_cast<size_t>(count) * sizeof(T));
    return part;
  }
  size_t bytes_from_null() const { return at_ + kAlignment; }

 private:
  static constexpr size_t kAlignment = 64;
  static uintptr_t aligned(uintptr_t at) { return (at + kAlignment - 1) / kAlignment * kAlignment; }

  uintptr_t at_;
};

// Returns the bytes of scratch memory that a machine with this kind of memory needs for `rows` rows
// of a call.
template <class Memory>
size_t scratch_bytes(const interpreter::View& view, const bridge_program& call, int64_t rows,
                     const interpreter::ColumnSplit& split) {
  MemoryParts parts(nullptr);
  Memory(parts, view, call, rows, split);
  return parts.bytes_from_null();
}

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_TILES_MEMORY_PARTS_H_
