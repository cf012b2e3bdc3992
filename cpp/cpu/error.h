// The message that belongs to a status code, one per thread; bridge_last_error() returns it.
#ifndef BRIDGE_CPU_ERROR_H_
#define BRIDGE_CPU_ERROR_H_

#include <bridge/bridge.h>
#include <stddef.h>

namespace bridge {

constexpr size_t kErrorBytes = 512;

// This thread's message buffer of kErrorBytes, to be written before a status other than BRIDGE_OK
// is returned.
char* error_message();

__attribute__((format(printf, 2, 3))) bridge_status fail(bridge_status status, const char* format,
                                                         ...);

}  // namespace bridge

#endif  // BRIDGE_CPU_ERROR_H_
