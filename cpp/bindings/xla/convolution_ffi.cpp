// The FFI handlers of convolutions and their gradients.
#include <xla/ffi/api/ffi.h>

#include <string>

#include "bindings/calls/convolution_call.h"
#include "bindings/cuda_library.h"
#include "bindings/xla/buffers.h"
#include "bindings/xla/xla_executor.h"
#include "bindings/xla/xla_ffi.h"

namespace bridge::bindings {
namespace {

// The attributes of a call. An order says which dimension of a buffer is the batch, the channels
// and each spatial dimension.
struct Attributes {
  int32_t kind;
  ffi::Span<const int64_t> stride, padding, dilation;
  int64_t groups;
  bool has_tensor_cores;
  ffi::Span<const int64_t> x_order, w_order, y_order;
};

Numbers numbers_of(const ffi::Span<const int64_t>& span) { return {span.begin(), span.size()}; }

// Reads the operands, in the order x, w, y without the result's own, and perhaps a bias.
ffi::Error read_convolution(const ffi::RemainingArgs& args, const ffi::AnyBuffer& result,
                            Device device, const Attributes& attributes, bridge_convolution* call) {
  ConvolutionArguments given;
  given.kind = attributes.kind;
  Operand* const all[] = {&given.x, &given.w, &given.y};
  Operand* const written = attributes.kind == BRIDGE_CONVOLUTION_FORWARD ? &given.y
                           : attributes.kind == BRIDGE_CONVOLUTION_INPUT ? &given.x
                                                                         : &given.w;
  Operand* places[3];
  size_t count = 0;
  for (Operand* each : all)
    if (each != written) places[count++] = each;
  places[count] = &given.bias;
  if (args.size() < 2 || args.size() > 3)
    return ffi::Error::InvalidArgument("bridge convolution: expected 2 or 3 operands");
  for (size_t i = 0; i < args.size(); ++i) {
    ffi::ErrorOr<ffi::AnyBuffer> buffer = args.get<ffi::AnyBuffer>(i);
    if (!buffer.has_value()) return buffer.error();
    read_buffer(*buffer, places[i]);
    places[i]->device = device;
  }
  read_buffer(result, written);
  written->device = device;
  given.stride = numbers_of(attributes.stride);
  given.padding = numbers_of(attributes.padding);
  given.dilation = numbers_of(attributes.dilation);
  given.groups = attributes.groups;
  given.has_tensor_cores = attributes.has_tensor_cores;
  given.x_order = numbers_of(attributes.x_order);
  given.w_order = numbers_of(attributes.w_order);
  given.y_order = numbers_of(attributes.y_order);
  CallError error;
  if (bind_convolution(given, call, &error)) return ffi::Error::Success();
  return ffi::Error::InvalidArgument("bridge convolution: " + error.message);
}

using Span = ffi::Span<const int64_t>;

ffi::Error run_on_cpu(ffi::ThreadPool pool, ffi::RemainingArgs args,
                      ffi::Result<ffi::AnyBuffer> result, int32_t kind, Span stride, Span padding,
                      Span dilation, int64_t groups, bool has_tensor_cores, Span x_order,
                      Span w_order, Span y_order) {
  return guarded([&] {
    bridge_convolution call;
    ffi::Error error = read_convolution(
        args, *result, Device::cpu,
        {kind, stride, padding, dilation, groups, has_tensor_cores, x_order, w_order, y_order},
        &call);
    if (error.failure()) return error;
    XlaExecutor threads(&pool);
    const bridge_executor executor = threads.executor();
    return status_error(bridge_convolution_cpu(&call, &executor), bridge_last_error());
  });
}

// The last result is the workspace, as of a program.
ffi::Error run_on_cuda(void* stream, ffi::RemainingArgs args, ffi::Result<ffi::AnyBuffer> result,
                       ffi::Result<ffi::AnyBuffer> workspace, int32_t kind, Span stride,
                       Span padding, Span dilation, int64_t groups, bool has_tensor_cores,
                       Span x_order, Span w_order, Span y_order) {
  return guarded([&] {
    std::string why;
    const CudaLibrary* library = cuda_library(&why);
    if (library == nullptr)
      return ffi::Error(ffi::ErrorCode::kUnavailable, "bridge convolution: " + why);
    bridge_convolution call;
    ffi::Error error = read_convolution(
        args, *result, Device::cuda,
        {kind, stride, padding, dilation, groups, has_tensor_cores, x_order, w_order, y_order},
        &call);
    if (error.failure()) return error;
    return status_error(
        library->run_convolution(&call, workspace->untyped_data(), workspace->size_bytes(), stream),
        library->last_error());
  });
}

template <class Binding>
auto with_attributes(Binding binding) {
  return std::move(binding)
      .template Attr<int32_t>("kind")  // bridge_convolution_kind
      .template Attr<Span>("stride")
      .template Attr<Span>("padding")  // of the low sides
      .template Attr<Span>("dilation")
      .template Attr<int64_t>("groups")
      .template Attr<bool>("tensor_cores")
      .template Attr<Span>("x_order")
      .template Attr<Span>("w_order")
      .template Attr<Span>("y_order");
}

XLA_FFI_DEFINE_HANDLER(
    on_cpu, run_on_cpu,
    with_attributes(ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().RemainingArgs().Ret<ffi::AnyBuffer>()));
XLA_FFI_DEFINE_HANDLER(on_cuda, run_on_cuda,
                       with_attributes(ffi::Ffi::Bind()
                                           .Ctx<ffi::PlatformStream<void*>>()
                                           .RemainingArgs()
                                           .Ret<ffi::AnyBuffer>()
                                           .Ret<ffi::AnyBuffer>()),
                       {ffi::Traits::kCmdBufferCompatible});

}  // namespace

void* ffi_convolution_cpu() { return reinterpret_cast<void*>(on_cpu); }
void* ffi_convolution_cuda() { return reinterpret_cast<void*>(on_cuda); }

}  // namespace bridge::bindings
