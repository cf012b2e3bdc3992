// The stream on which XLA computes, which JAX tells nobody but the handlers that it calls.
#ifndef BRIDGE_BORDER_XLA_XLA_STREAM_H_
#define BRIDGE_BORDER_XLA_XLA_STREAM_H_

#include <cstdint>

namespace bridge::border {

// Handlers of the custom call "bridge_stream", which has one result and leaves it unwritten. It
// notes the stream that it is called on; on the CPU, where there is none, 0.
void* stream_handler_on_cpu();
void* stream_handler_on_cuda();

// What the last such call noted; -1 before the first.
int64_t noted_stream();

}  // namespace bridge::border

#endif  // BRIDGE_BORDER_XLA_XLA_STREAM_H_
