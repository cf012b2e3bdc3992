#include "bindings/xla/xla_stream.h"

#include <atomic>

#include <xla/ffi/api/ffi.h>

namespace bridge::bindings {
namespace {

namespace ffi = xla::ffi;

std::atomic<int64_t> noted{-1};

ffi::Error note_none(ffi::Result<ffi::AnyBuffer>) {
  noted.store(0);
  return ffi::Error::Success();
}

ffi::Error note(void* stream, ffi::Result<ffi::AnyBuffer>) {
  noted.store(static_cast<int64_t>(reinterpret_cast<intptr_t>(stream)));
  return ffi::Error::Success();
}

// The handlers are not compatible with command buffers: there the stream would be the one that
// captures.
XLA_FFI_DEFINE_HANDLER(on_cpu, note_none, ffi::Ffi::Bind().Ret<ffi::AnyBuffer>());
XLA_FFI_DEFINE_HANDLER(on_cuda, note,
                       ffi::Ffi::Bind().Ctx<ffi::PlatformStream<void*>>().Ret<ffi::AnyBuffer>());

}  // namespace

void* stream_handler_on_cpu() { return reinterpret_cast<void*>(on_cpu); }
void* stream_handler_on_cuda() { return reinterpret_cast<void*>(on_cuda); }
int64_t noted_stream() { return noted.load(); }

}  // namespace bridge::bindings
