// The arithmetic that a call is computed in.
#pragma once

namespace bridge::math {

// float arithmetic that is accurate enough for 16-bit results, where every operand is 16-bit.
struct SingleFor16Bits {
  using real = float;
};

struct Single {
  using real = float;
};

struct Double {
  using real = double;
};

}  // namespace bridge::math
