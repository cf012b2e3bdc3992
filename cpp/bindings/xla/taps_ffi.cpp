// The XLA handler of maps between places, on the CPU.
#include <string>
#include <utility>

#include <xla/ffi/api/ffi.h>
#include "bindings/calls/taps_call.h"
#include "bindings/xla/buffers.h"
#include "bindings/xla/xla_executor.h"
#include "bindings/xla/xla_ffi.h"

namespace bridge::bindings {
namespace {

// The operands are x, and the table and weights, or the chosen places.
ffi::Error run_taps(ffi::ThreadPool pool, ffi::RemainingArgs args,
                    ffi::Result<ffi::AnyBuffer> result, int32_t kind, bool has_inner) {
  return guarded([&] {
    TapsArguments given;
    given.kind = kind;
    given.has_inner = has_inner;
    Operand* const second = kind <= BRIDGE_TAPS_LARGEST ? &given.table : &given.chosen;
    Operand* const places[] = {&given.x, second, &given.weights};
    if (args.size() > 3) return ffi::Error::InvalidArgument("bridge taps: more than 3 operands");
    for (size_t i = 0; i < args.size(); ++i) {
      ffi::ErrorOr<ffi::AnyBuffer> buffer = args.get<ffi::AnyBuffer>(i);
      if (!buffer.has_value()) return buffer.error();
      read_buffer(*buffer, places[i]);
    }
    read_buffer(*result, &given.result);
    bridge_taps call;
    CallError error;
    if (!bind_taps(given, &call, &error))
      return ffi::Error::InvalidArgument("bridge taps: " + error.message);
    XlaExecutor threads(&pool);
    const bridge_executor executor = threads.executor();
    return status_error(bridge_taps_cpu(&call, &executor), bridge_last_error());
  });
}

XLA_FFI_DEFINE_HANDLER(taps_on_cpu, run_taps,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .RemainingArgs()
                           .Ret<ffi::AnyBuffer>()
                           .Attr<int32_t>("kind")  // bridge_taps_kind
                           .Attr<bool>("has_inner"));

}  // namespace

void* ffi_taps_cpu() { return reinterpret_cast<void*>(taps_on_cpu); }

}  // namespace bridge::bindings
