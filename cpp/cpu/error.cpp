#include "cpu/error.h"

#include <stdarg.h>
#include <stdio.h>

namespace bridge {

char* error_message() {
  thread_local char message[kErrorBytes] = "";
  return message;
}

bridge_status fail(bridge_status status, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(error_message(), kErrorBytes, format, arguments);
  va_end(arguments);
  return status;
}

}  // namespace bridge

extern "C" const char* bridge_last_error(void) { return bridge::error_message(); }
