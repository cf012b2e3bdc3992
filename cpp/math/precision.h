// The arithmetic that a call is computed in.
#pragma once

namespace bridge::math {

// Every operand of the call is 16-bit: float arithmetic, accurate enough for 16-bit results.
struct Half {
  using real = float;
};

struct Single {
  using real = float;
};

struct Double {
  using real = double;
};

}  // namespace bridge::math
