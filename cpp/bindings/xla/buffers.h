// Buffers and errors of XLA for all handlers.
#ifndef BRIDGE_BINDINGS_XLA_BUFFERS_H_
#define BRIDGE_BINDINGS_XLA_BUFFERS_H_

#include <bridge/bridge.h>

#include <exception>
#include <new>
#include <string>

#include <xla/ffi/api/ffi.h>
#include "bindings/calls/operand.h"

namespace bridge::bindings {

namespace ffi = xla::ffi;

inline int32_t dtype_of(ffi::DataType dtype) {
  switch (dtype) {
    case ffi::DataType::F16:
      return BRIDGE_FLOAT16;
    case ffi::DataType::BF16:
      return BRIDGE_BFLOAT16;
    case ffi::DataType::F32:
      return BRIDGE_FLOAT32;
    case ffi::DataType::F64:
      return BRIDGE_FLOAT64;
    case ffi::DataType::PRED:
      return BRIDGE_BOOL;
    case ffi::DataType::U8:
      return BRIDGE_UINT8;
    case ffi::DataType::S64:
      return BRIDGE_INT64;
    case ffi::DataType::U32:
      return BRIDGE_UINT32;
    case ffi::DataType::S8:
      return BRIDGE_INT8;
    case ffi::DataType::S16:
      return BRIDGE_INT16;
    case ffi::DataType::S32:
      return BRIDGE_INT32;
    case ffi::DataType::U16:
      return BRIDGE_UINT16;
    case ffi::DataType::U64:
      return BRIDGE_UINT64;
    case ffi::DataType::F8E4M3FN:
      return BRIDGE_FLOAT8_E4M3FN;
    case ffi::DataType::F8E5M2:
      return BRIDGE_FLOAT8_E5M2;
    case ffi::DataType::F8E8M0FNU:
      return BRIDGE_FLOAT8_E8M0FNU;
    default:
      return kNoDtype;
  }
}

inline void read_buffer(const ffi::AnyBuffer& buffer, Operand* operand) {
  operand->present = true;
  operand->data = buffer.untyped_data();
  operand->dtype = dtype_of(buffer.element_type());
  operand->ndim = static_cast<int32_t>(buffer.dimensions().size());
  operand->shape = buffer.dimensions().begin();
}

inline ffi::Error status_error(bridge_status status, const char* message) {
  if (status == BRIDGE_OK) return ffi::Error::Success();
  if (status == BRIDGE_INVALID_ARGUMENT) return ffi::Error::InvalidArgument(message);
  return ffi::Error::Internal(message);
}

// Catches every exception. XLA does not: one that escaped would end the process.
template <class Body>
ffi::Error guarded(Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "bridge: out of memory");
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string("bridge: ") + error.what());
  } catch (...) {
    return ffi::Error::Internal("bridge: unknown exception");
  }
}

}  // namespace bridge::bindings

#endif  // BRIDGE_BINDINGS_XLA_BUFFERS_H_
