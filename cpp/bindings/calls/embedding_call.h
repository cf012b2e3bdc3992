// The gradient of an embedding from tensors: the C struct of the call.
#ifndef BRIDGE_BINDINGS_CALLS_EMBEDDING_CALL_H_
#define BRIDGE_BINDINGS_CALLS_EMBEDDING_CALL_H_

#include <bridge/bridge.h>

#include "bindings/calls/operand.h"

namespace bridge::bindings {

// The cotangents [batches, count, cols]; ids [batches, count], on CUDA sorted, with their order;
// the result [batches, rows, cols]. All are compact. The order is absent on the CPU.
struct EmbeddingArguments {
  Operand terms, ids, order, result;
};

// Returns false with the error set.
bool bind_embedding(const EmbeddingArguments& arguments, bridge_embedding_gradient* call,
                    CallError* error);

}  // namespace bridge::bindings

#endif  // BRIDGE_BINDINGS_CALLS_EMBEDDING_CALL_H_
