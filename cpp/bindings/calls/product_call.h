// A matrix product from tensors: the C struct of the call.
#ifndef BRIDGE_BINDINGS_CALLS_PRODUCT_CALL_H_
#define BRIDGE_BINDINGS_CALLS_PRODUCT_CALL_H_

#include <bridge/bridge.h>

#include "bindings/calls/operand.h"

namespace bridge::bindings {

// a [*batches, m, k], or [*batches, k, m] if it is transposed; b [*batches, k, n], or [*batches, n,
// k]; bias [n] or [*batches, n], or absent; c [*batches, m, n]. A batch of size 1 in an operand
// serves all of c's.
struct ProductArguments {
  Operand a, b, bias, c;
  bool is_a_transposed = false, is_b_transposed = false, skips_zeros = false;
  bool has_tensor_cores = false;
};

// Returns false with the error set.
bool bind_product(const ProductArguments& arguments, bridge_product* call, CallError* error);

}  // namespace bridge::bindings

#endif  // BRIDGE_BINDINGS_CALLS_PRODUCT_CALL_H_
