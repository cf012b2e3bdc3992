// The scale of a call of the softmax program, for both devices. Host code.
#ifndef BRIDGE_HAND_WRITTEN_SOFTMAX_SCALE_H_
#define BRIDGE_HAND_WRITTEN_SOFTMAX_SCALE_H_

#include <bridge/bridge.h>
#include <string.h>

#include "math/softmax.h"
#include "program/program.h"

// Inlined, because files that include it are compiled for several instruction sets.
#define BRIDGE_INLINED inline __attribute__((always_inline))

namespace bridge {

// Returns parameter i of a call: the program's constant i.
BRIDGE_INLINED double parameter(const interpreter::View& view, int i) {
  double number;
  memcpy(&number, view.constants + 2 * i, sizeof number);
  return number;
}

template <class Precision, class Real>
BRIDGE_INLINED void set_scale_of(const interpreter::View& view, math::SoftmaxScale<Real>* scale) {
  *scale = math::softmax_scale<Precision>(0.0);
  scale->half = static_cast<Real>(parameter(view, 0));
  scale->rate = static_cast<Real>(parameter(view, 1));
  if constexpr (!math::is_for_16_bits<Precision>) {
    scale->rate_low = static_cast<Real>(parameter(view, 2));
    scale->floor = static_cast<Real>(parameter(view, 3));
  }
}

// Sets the scale of a call on x of this dtype, in the form of math::softmax_scale.
BRIDGE_INLINED void set_scale(const interpreter::View& view, int32_t dtype,
                              math::SoftmaxScale<float>* single,
                              math::SoftmaxScale<double>* in_double) {
  switch (dtype) {
    case BRIDGE_FLOAT16:
      return set_scale_of<math::SingleForFloat16>(view, single);
    case BRIDGE_BFLOAT16:
      return set_scale_of<math::SingleForBfloat16>(view, single);
    case BRIDGE_FLOAT32:
      return set_scale_of<math::Single>(view, single);
    default:
      return set_scale_of<math::Double>(view, in_double);
  }
}

}  // namespace bridge

#undef BRIDGE_INLINED

#endif  // BRIDGE_HAND_WRITTEN_SOFTMAX_SCALE_H_
