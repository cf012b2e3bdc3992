// GELU and its derivatives in three forms and three precisions; the gelu_*.h files implement them.
#pragma once

#include <type_traits>

namespace bridge::math {

// tanh: h sigma(2 sqrt(2/pi) (h + 0.044715 h^3)); erf: h Phi(h); sigmoid: h sigma(1.702 h).
enum class GeluForm : int { tanh = 0, erf = 1, sigmoid = 2 };

}  // namespace bridge::math

#include "math/gelu_erf.h"
#include "math/gelu_for_16_bits.h"
#include "math/gelu_logistic.h"
#include "math/precision.h"

namespace bridge::math {

// The value (Order 0), first or second derivative of GELU at h. -inf gives -0, 0, 0; +inf gives
// +inf, 1, 0; NaN gives some NaN (the final rounding makes it canonical). At -inf the logistic
// forms for float16 give a number that rounds to -0.
template <class Precision, GeluForm F, int Order>
BRIDGE_HD typename Precision::real gelu(typename Precision::real h) {
  static_assert(Order >= 0 && Order <= 2);
  using Real = typename Precision::real;
  if constexpr (is_for_16_bits<Precision> && Order < 2) {
    return detail::gelu_for_16_bits<Precision, F, Order>(h);
  } else if constexpr (F == GeluForm::erf) {
    return detail::gelu_erf<Real, Order>(h);
  } else {
    return detail::gelu_logistic<Real, F, Order>(h);
  }
}

}  // namespace bridge::math
