// A tensor from DLPack or XLA FFI in the common form that calls read.
#ifndef BRIDGE_BINDINGS_CALLS_OPERAND_H_
#define BRIDGE_BINDINGS_CALLS_OPERAND_H_

#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <utility>

#include "drivers/dtypes.h"

namespace bridge::bindings {

enum class Device : int32_t { cpu, cuda };

constexpr int32_t kNoDtype = -1;  // one that no op takes

// An operand or a result. Shape and strides belong to the producer and live as long as the call.
struct Operand {
  bool present = false;
  void* data = nullptr;
  int32_t dtype = kNoDtype;  // bridge_dtype or kNoDtype
  int32_t ndim = 0;
  const int64_t* shape = nullptr;
  const int64_t* strides = nullptr;  // in elements; nullptr: row-major and compact
  Device device = Device::cpu;
  int32_t device_index = 0;
  bool read_only = false;
};

// The reason for an invalid call. `unreadable` is the position of an operand with unsupported
// strides: the caller may copy it and try again. A result has the number of operands and its
// position. It is -1 if a copy does not help.
struct CallError {
  std::string message;
  int32_t unreadable = -1;

  // Returns false, for `return error->set(...)`.
  bool set(std::string text) {
    message = std::move(text);
    return false;
  }
};

// Returns a name such as "float32", or "a dtype that no op takes".
const char* describe_dtype(int32_t dtype);

// Returns the shape in brackets, as Python prints a list: "[2, 3]".
std::string describe_shape(const Operand& operand);

bool is_empty(const Operand& operand);

// True if the elements lie in row-major order without gaps.
bool is_compact(const Operand& operand);

inline int64_t elements_of(const Operand& operand) {
  int64_t elements = 1;
  for (int32_t i = 0; i < operand.ndim; ++i) elements *= operand.shape[i];
  return elements;
}

inline bool same_device(const Operand& a, const Operand& b) {
  return a.device == b.device && a.device_index == b.device_index;
}

// The first `count` of kCapacity operands, absent. The others are not cleared: that would cost a
// tiny call more than everything else.
template <size_t kCapacity>
class AbsentOperands {
 public:
  explicit AbsentOperands(size_t count) {
    for (size_t i = 0; i < count; ++i) new (&storage_[i * sizeof(Operand)]) Operand;
  }
  Operand* data() { return reinterpret_cast<Operand*>(storage_); }
  Operand& operator[](size_t i) { return data()[i]; }

 private:
  alignas(Operand) unsigned char storage_[kCapacity * sizeof(Operand)];
};

// Returns the address of an operand, never null. An empty tensor may have no address, but for the
// library a null address means an absent operand.
void* address_of(const Operand& operand);

}  // namespace bridge::bindings

#endif  // BRIDGE_BINDINGS_CALLS_OPERAND_H_
