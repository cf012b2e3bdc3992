// XLA's compute stream, which JAX passes only to handlers.
#ifndef BRIDGE_BINDINGS_XLA_XLA_STREAM_H_
#define BRIDGE_BINDINGS_XLA_XLA_STREAM_H_

#include <cstdint>

namespace bridge::bindings {

// Handlers of the custom call "bridge_stream", which has one result and leaves it unwritten. They
// record the stream of the call, or 0 on the CPU.
void* stream_handler_on_cpu();
void* stream_handler_on_cuda();

// Returns the stream of the last such call; -1 before the first.
int64_t noted_stream();

}  // namespace bridge::bindings

#endif  // BRIDGE_BINDINGS_XLA_XLA_STREAM_H_
