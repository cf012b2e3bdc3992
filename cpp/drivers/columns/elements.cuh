// Access to elements of a dtype known at run time.
#ifndef BRIDGE_DRIVERS_COLUMNS_ELEMENTS_CUH_
#define BRIDGE_DRIVERS_COLUMNS_ELEMENTS_CUH_

#include <bridge/bridge.h>

#include "cuda/vector.h"
#include "math/convert.h"
#include "math/eight_bits.h"

namespace bridge::columns {

// An array. If each batch has a part of its own, the parts are `batch_stride` elements apart.
struct Array {
  void* data;
  int32_t dtype;
  int64_t batch_stride;
};

// The functions for an Array choose the element type by its bridge_dtype, at run time.
template <class Real, class T>
BRIDGE_DEVICE Real load_as(const void* data, int64_t index) {
  return simt::widen<Real>(static_cast<const T*>(data)[index]);
}

template <class Real>
BRIDGE_DEVICE Real load_real(const Array& array, int64_t index) {
  switch (array.dtype) {
    case BRIDGE_FLOAT16:
      return load_as<Real, math::float16>(array.data, index);
    case BRIDGE_BFLOAT16:
      return load_as<Real, math::bfloat16>(array.data, index);
    case BRIDGE_FLOAT32:
      return load_as<Real, float>(array.data, index);
    case BRIDGE_INT8:
      return load_as<Real, int8_t>(array.data, index);
    case BRIDGE_FLOAT8_E4M3FN:
      return load_as<Real, math::float8_e4m3fn>(array.data, index);
    case BRIDGE_FLOAT8_E5M2:
      return load_as<Real, math::float8_e5m2>(array.data, index);
    case BRIDGE_FLOAT8_E8M0FNU:
      return load_as<Real, math::float8_e8m0fnu>(array.data, index);
    default:
      return load_as<Real, double>(array.data, index);
  }
}

template <class Real>
BRIDGE_DEVICE void store_real(const Array& array, int64_t index, Real value) {
  switch (array.dtype) {
    case BRIDGE_FLOAT16:
      static_cast<math::float16*>(array.data)[index] = math::round_to<math::float16>(value);
      break;
    case BRIDGE_BFLOAT16:
      static_cast<math::bfloat16*>(array.data)[index] = math::round_to<math::bfloat16>(value);
      break;
    case BRIDGE_FLOAT32:
      static_cast<float*>(array.data)[index] = math::round_to<float>(value);
      break;
    case BRIDGE_INT8:
      static_cast<int8_t*>(array.data)[index] = math::round_to<int8_t>(value);
      break;
    case BRIDGE_FLOAT8_E4M3FN:
      static_cast<math::float8_e4m3fn*>(array.data)[index] =
          math::round_to<math::float8_e4m3fn>(value);
      break;
    case BRIDGE_FLOAT8_E5M2:
      static_cast<math::float8_e5m2*>(array.data)[index] = math::round_to<math::float8_e5m2>(value);
      break;
    case BRIDGE_FLOAT8_E8M0FNU:
      static_cast<math::float8_e8m0fnu*>(array.data)[index] =
          math::round_to<math::float8_e8m0fnu>(value);
      break;
    default:
      static_cast<double*>(array.data)[index] = math::round_to<double>(value);
  }
}

}  // namespace bridge::columns

#endif  // BRIDGE_DRIVERS_COLUMNS_ELEMENTS_CUH_
