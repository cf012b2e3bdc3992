// The XLA handlers of the choice of columns.
#include <string>
#include <utility>

#include <xla/ffi/api/ffi.h>
#include "bindings/calls/selection_call.h"
#include "bindings/cuda_library.h"
#include "bindings/xla/buffers.h"
#include "bindings/xla/xla_executor.h"
#include "bindings/xla/xla_ffi.h"

namespace bridge::bindings {
namespace {

// Runs a choice of columns: run(call). The words are absent, or the second operand.
template <class Run>
ffi::Error run_selection(ffi::RemainingArgs args, const ffi::AnyBuffer& result, double temperature,
                         int64_t top_k, double top_p, double min_p, const Run& run) {
  return guarded([&] {
    SelectionArguments arguments;
    Operand* const places[] = {&arguments.x, &arguments.words};
    if (args.size() > 2)
      return ffi::Error::InvalidArgument("bridge selection: more than 2 operands");
    for (size_t i = 0; i < args.size(); ++i) {
      ffi::ErrorOr<ffi::AnyBuffer> buffer = args.get<ffi::AnyBuffer>(i);
      if (!buffer.has_value()) return buffer.error();
      read_buffer(*buffer, places[i]);
    }
    read_buffer(result, &arguments.result);
    bridge_selection call;
    CallError error;
    if (!bind_selection(arguments, {temperature, top_p, min_p, top_k}, &call, &error))
      return ffi::Error::InvalidArgument("bridge selection: " + error.message);
    return run(call);
  });
}

ffi::Error run_selection_on_cpu(ffi::ThreadPool pool, ffi::RemainingArgs args,
                                ffi::Result<ffi::AnyBuffer> result, double temperature,
                                int64_t top_k, double top_p, double min_p) {
  const auto run = [&](const bridge_selection& call) {
    XlaExecutor threads(&pool);
    const bridge_executor executor = threads.executor();
    return status_error(bridge_selection_cpu(&call, &executor), bridge_last_error());
  };
  return run_selection(args, *result, temperature, top_k, top_p, min_p, run);
}

ffi::Error run_selection_on_cuda(void* stream, ffi::RemainingArgs args,
                                 ffi::Result<ffi::AnyBuffer> result, double temperature,
                                 int64_t top_k, double top_p, double min_p) {
  const auto run = [&](const bridge_selection& call) {
    std::string why;
    const CudaLibrary* library = cuda_library(&why);
    if (library == nullptr)
      return ffi::Error(ffi::ErrorCode::kUnavailable, "bridge selection: " + why);
    return status_error(library->selection(&call, stream), library->last_error());
  };
  return run_selection(args, *result, temperature, top_k, top_p, min_p, run);
}

template <class Binding>
auto with_selection_attributes(Binding binding) {
  return std::move(binding)
      .RemainingArgs()  // x, and perhaps the words
      .template Ret<ffi::AnyBuffer>()
      .template Attr<double>("temperature")
      .template Attr<int64_t>("top_k")
      .template Attr<double>("top_p")
      .template Attr<double>("min_p");
}

XLA_FFI_DEFINE_HANDLER(selection_on_cpu, run_selection_on_cpu,
                       with_selection_attributes(ffi::Ffi::Bind().Ctx<ffi::ThreadPool>()));
XLA_FFI_DEFINE_HANDLER(
    selection_on_cuda, run_selection_on_cuda,
    with_selection_attributes(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<void*>>()),
    {ffi::Traits::kCmdBufferCompatible});
}  // namespace

void* ffi_selection_cpu() { return reinterpret_cast<void*>(selection_on_cpu); }
void* ffi_selection_cuda() { return reinterpret_cast<void*>(selection_on_cuda); }

}  // namespace bridge::bindings
