#include "bindings/calls/operand.h"

namespace bridge::bindings {

const char* describe_dtype(int32_t dtype) {
  static const char* const names[] = {"float16", "bfloat16",      "float32",     "float64",
                                      "bool",    "uint8",         "int64",       "uint32",
                                      "int8",    "int16",         "int32",       "uint16",
                                      "uint64",  "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"};
  return dtype >= 0 && dtype <= BRIDGE_FLOAT8_E8M0FNU ? names[dtype] : "a dtype that no op takes";
}

std::string describe_shape(const Operand& operand) {
  std::string text = "[";
  for (int32_t i = 0; i < operand.ndim; ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(operand.shape[i]);
  }
  return text + "]";
}

bool is_empty(const Operand& operand) {
  for (int32_t i = 0; i < operand.ndim; ++i) {
    if (operand.shape[i] == 0) return true;
  }
  return false;
}

bool is_compact(const Operand& operand) {
  if (operand.strides == nullptr || is_empty(operand)) return true;
  int64_t stride = 1;
  for (int32_t d = operand.ndim - 1; d >= 0; --d) {
    if (operand.shape[d] != 1 && operand.strides[d] != stride) return false;
    stride *= operand.shape[d];
  }
  return true;
}

void* address_of(const Operand& operand) {
  alignas(16) static char nowhere[16];
  return operand.data != nullptr ? operand.data : nowhere;
}

}  // namespace bridge::bindings
