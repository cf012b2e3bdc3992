// A map between places from tensors: the C struct of the call.
#ifndef BRIDGE_BINDINGS_CALLS_TAPS_CALL_H_
#define BRIDGE_BINDINGS_CALLS_TAPS_CALL_H_

#include <bridge/taps.h>

#include "bindings/calls/operand.h"

namespace bridge::bindings {

// x and the result [..., places], or [..., places, inner] with has_inner; the others as taps.h
// says, or absent. All are compact.
struct TapsArguments {
  Operand x, table, weights, chosen, result;
  int32_t kind = 0;
  bool has_inner = false;
};

// Returns false with the error set.
bool bind_taps(const TapsArguments& arguments, bridge_taps* call, CallError* error);

}  // namespace bridge::bindings

#endif  // BRIDGE_BINDINGS_CALLS_TAPS_CALL_H_
