#include "bindings/xla/xla_ffi.h"

#include <cstddef>
#include <string>
#include <utility>

#include <xla/ffi/api/ffi.h>
#include "bindings/calls/embedding_call.h"
#include "bindings/calls/product_call.h"
#include "bindings/calls/program_call.h"
#include "bindings/cuda_library.h"
#include "bindings/xla/buffers.h"
#include "bindings/xla/known_programs.h"
#include "bindings/xla/xla_executor.h"
#include "program/interpreter.h"

namespace bridge::bindings {
namespace {

// Reads the operands. XLA passes only the present ones: slots[i] is the position of the i-th buffer
// among the operands.
bool place(const ffi::RemainingArgs& args, ffi::Span<const int32_t> slots, size_t operand_count,
           Operand* operands, CallError* error) {
  if (slots.size() != args.size()) {
    return error->set("attribute slots has " + std::to_string(slots.size()) + " entries for " +
                      std::to_string(args.size()) + " buffers");
  }
  for (size_t i = 0; i < args.size(); ++i) {
    const int32_t slot = slots.begin()[i];
    if (slot < 0 || static_cast<size_t>(slot) >= operand_count || operands[slot].present) {
      return error->set("attribute slots has the entry " + std::to_string(slot) +
                        ", which is out of range or given twice");
    }
    ffi::ErrorOr<ffi::AnyBuffer> buffer = args.get<ffi::AnyBuffer>(i);
    if (!buffer.has_value()) return error->set(buffer.error().message());
    read_buffer(*buffer, &operands[slot]);
  }
  return true;
}

// Reads the results. Bit i of `outputs` is set if result i is wanted. `extra` other buffers follow
// the results.
bool place(const ffi::RemainingRets& rets, int32_t outputs, size_t result_count, size_t extra,
           Operand* results, CallError* error) {
  size_t expected = extra;
  for (size_t i = 0; i < result_count; ++i) expected += outputs >> i & 1;
  if (outputs < 1 || int64_t{outputs} >> result_count != 0 || rets.size() != expected) {
    return error->set("attribute outputs is " + std::to_string(outputs) + " for " +
                      std::to_string(rets.size()) + " result buffers");
  }
  size_t next = 0;
  for (size_t i = 0; i < result_count; ++i) {
    if ((outputs >> i & 1) == 0) continue;
    ffi::ErrorOr<ffi::Result<ffi::AnyBuffer>> buffer = rets.get<ffi::AnyBuffer>(next++);
    if (!buffer.has_value()) return error->set(buffer.error().message());
    read_buffer(**buffer, &results[i]);
  }
  return true;
}

// The arguments of every call.
struct FfiCall {
  const ffi::RemainingArgs& args;
  const ffi::RemainingRets& rets;
  ffi::Span<const double> attributes;
  int32_t count;
  ffi::Span<const int32_t> slots;
  int32_t outputs;
  ffi::Span<const int32_t> words;
};

bool bind_call(const FfiCall& call, size_t extra_results, BoundProgram* bound, CallError* error) {
  if (call.count < 0 || static_cast<size_t>(call.count) > kMaxOperands) {
    return error->set("attribute count is " + std::to_string(call.count) + ", expected 1 to " +
                      std::to_string(kMaxOperands));
  }
  const auto operand_count = static_cast<size_t>(call.count);
  const auto words = static_cast<int64_t>(call.words.size());
  AbsentOperands<kMaxOperands> operands(operand_count);
  AbsentOperands<kMaxResults> results(kMaxResults);
  return place(call.args, call.slots, operand_count, operands.data(), error) &&
         place(call.rets, call.outputs, kMaxResults, extra_results, results.data(), error) &&
         bind({operands.data(),
               operand_count,
               results.data(),
               kMaxResults,
               call.attributes.begin(),
               call.attributes.size(),
               {call.words.begin(), words, known_program(call.words.begin(), words)}},
              bound, error);
}

ffi::Error invalid(const CallError& error) {
  return ffi::Error::InvalidArgument("bridge program: " + error.message);
}

ffi::Error run_on_cpu(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets,
                      ffi::Span<const double> attributes, int32_t count,
                      ffi::Span<const int32_t> slots, int32_t outputs,
                      ffi::Span<const int32_t> words) {
  return guarded([&] {
    BoundProgram call;
    CallError error;
    if (!bind_call({args, rets, attributes, count, slots, outputs, words}, 0, &call, &error)) {
      return invalid(error);
    }
    XlaExecutor threads(&pool);
    const bridge_executor executor = threads.executor();
    return status_error(interpreter::run_on_cpu(call, call.known, &executor), bridge_last_error());
  });
}

// Runs a program on CUDA. The last result buffer is the workspace: XLA plans its memory, so that
// the call can be captured into a command buffer.
ffi::Error run_on_cuda(void* stream, ffi::RemainingArgs args, ffi::RemainingRets rets,
                       ffi::Span<const double> attributes, int32_t count,
                       ffi::Span<const int32_t> slots, int32_t outputs,
                       ffi::Span<const int32_t> words) {
  return guarded([&] {
    std::string why;
    const CudaLibrary* library = cuda_library(&why);
    if (library == nullptr) {
      return ffi::Error(ffi::ErrorCode::kUnavailable, "bridge program: " + why);
    }
    BoundProgram call;
    CallError error;
    if (!bind_call({args, rets, attributes, count, slots, outputs, words}, 1, &call, &error)) {
      return invalid(error);
    }
    ffi::ErrorOr<ffi::Result<ffi::AnyBuffer>> workspace = rets.get<ffi::AnyBuffer>(rets.size() - 1);
    if (!workspace.has_value()) return workspace.error();
    return status_error(
        library->run(&call, (*workspace)->untyped_data(), (*workspace)->size_bytes(), stream),
        library->last_error());
  });
}

// Reads a matrix product: a, b and perhaps a bias.
ffi::Error read_product(ffi::RemainingArgs args, ffi::AnyBuffer result, Device device,
                        ProductArguments arguments, bridge_product* call) {
  Operand* const places[] = {&arguments.a, &arguments.b, &arguments.bias};
  if (args.size() > 3) return ffi::Error::InvalidArgument("bridge matmul: more than 3 operands");
  for (size_t i = 0; i < args.size(); ++i) {
    ffi::ErrorOr<ffi::AnyBuffer> buffer = args.get<ffi::AnyBuffer>(i);
    if (!buffer.has_value()) return buffer.error();
    read_buffer(*buffer, places[i]);
    places[i]->device = device;
  }
  read_buffer(result, &arguments.c);
  arguments.c.device = device;
  CallError error;
  if (bind_product(arguments, call, &error)) return ffi::Error::Success();
  return ffi::Error::InvalidArgument("bridge matmul: " + error.message);
}

ProductArguments product_arguments(bool is_a_transposed, bool is_b_transposed, bool skips_zeros,
                                   bool has_tensor_cores) {
  ProductArguments arguments;
  arguments.is_a_transposed = is_a_transposed;
  arguments.is_b_transposed = is_b_transposed;
  arguments.skips_zeros = skips_zeros;
  arguments.has_tensor_cores = has_tensor_cores;
  return arguments;
}

ffi::Error run_product_on_cpu(ffi::ThreadPool pool, ffi::RemainingArgs args,
                              ffi::Result<ffi::AnyBuffer> result, bool is_a_transposed,
                              bool is_b_transposed, bool skips_zeros, bool has_tensor_cores) {
  return guarded([&] {
    bridge_product call;
    ffi::Error error = read_product(
        args, *result, Device::cpu,
        product_arguments(is_a_transposed, is_b_transposed, skips_zeros, has_tensor_cores), &call);
    if (error.failure()) return error;
    XlaExecutor threads(&pool);
    const bridge_executor executor = threads.executor();
    return status_error(bridge_product_cpu(&call, &executor), bridge_last_error());
  });
}

// The last result is the workspace, as of a program.
ffi::Error run_product_on_cuda(void* stream, ffi::RemainingArgs args,
                               ffi::Result<ffi::AnyBuffer> result,
                               ffi::Result<ffi::AnyBuffer> workspace, bool is_a_transposed,
                               bool is_b_transposed, bool skips_zeros, bool has_tensor_cores) {
  return guarded([&] {
    std::string why;
    const CudaLibrary* library = cuda_library(&why);
    if (library == nullptr)
      return ffi::Error(ffi::ErrorCode::kUnavailable, "bridge matmul: " + why);
    bridge_product call;
    ffi::Error error = read_product(
        args, *result, Device::cuda,
        product_arguments(is_a_transposed, is_b_transposed, skips_zeros, has_tensor_cores), &call);
    if (error.failure()) return error;
    return status_error(
        library->run_product(&call, workspace->untyped_data(), workspace->size_bytes(), stream),
        library->last_error());
  });
}

// Runs the gradient of an embedding: run(call). `order` is null on the CPU.
template <class Run>
ffi::Error run_embedding(const ffi::AnyBuffer& terms, const ffi::AnyBuffer& ids,
                         const ffi::AnyBuffer* order, const ffi::AnyBuffer& result,
                         const Run& run) {
  return guarded([&] {
    EmbeddingArguments arguments;
    read_buffer(terms, &arguments.terms);
    read_buffer(ids, &arguments.ids);
    if (order != nullptr) read_buffer(*order, &arguments.order);
    read_buffer(result, &arguments.result);
    bridge_embedding_gradient call;
    CallError error;
    if (!bind_embedding(arguments, &call, &error))
      return ffi::Error::InvalidArgument("bridge embedding: " + error.message);
    return run(call);
  });
}

ffi::Error run_embedding_on_cpu(ffi::ThreadPool pool, ffi::AnyBuffer terms, ffi::AnyBuffer ids,
                                ffi::Result<ffi::AnyBuffer> result) {
  return run_embedding(terms, ids, nullptr, *result, [&](const bridge_embedding_gradient& call) {
    XlaExecutor threads(&pool);
    const bridge_executor executor = threads.executor();
    return status_error(bridge_embedding_gradient_cpu(&call, &executor), bridge_last_error());
  });
}

ffi::Error run_embedding_on_cuda(void* stream, ffi::AnyBuffer terms, ffi::AnyBuffer ids,
                                 ffi::AnyBuffer order, ffi::Result<ffi::AnyBuffer> result,
                                 ffi::Result<ffi::AnyBuffer> workspace) {
  return run_embedding(terms, ids, &order, *result, [&](const bridge_embedding_gradient& call) {
    std::string why;
    const CudaLibrary* library = cuda_library(&why);
    if (library == nullptr)
      return ffi::Error(ffi::ErrorCode::kUnavailable, "bridge embedding: " + why);
    return status_error(
        library->embedding(&call, workspace->untyped_data(), workspace->size_bytes(), stream),
        library->last_error());
  });
}

// Loads all kernels when a program is compiled or loaded: before it runs, is captured into a
// command buffer or waits for others in a collective. XLA has made contexts on all its devices by
// then.
ffi::Error prepare() {
  return guarded([] {
    prepare_cuda();
    return ffi::Error::Success();
  });
}

template <class Binding>
auto with_arguments(Binding binding) {
  return std::move(binding)
      .RemainingArgs()                                       // the present operands
      .RemainingRets()                                       // the wanted results
      .template Attr<ffi::Span<const double>>("attributes")  // batch_ndim, index_cols
      .template Attr<int32_t>("count")                       // of operands, absent ones included
      .template Attr<ffi::Span<const int32_t>>("slots")      // position of each operand
      .template Attr<int32_t>("outputs")                     // bit i: result i is wanted
      .template Attr<ffi::Span<const int32_t>>("code");      // the program's bytecode
}

ffi::Error do_nothing(ffi::RemainingArgs, ffi::RemainingRets, ffi::Dictionary) {
  return ffi::Error::Success();
}

XLA_FFI_DEFINE_HANDLER(on_cpu, run_on_cpu, with_arguments(ffi::Ffi::Bind().Ctx<ffi::ThreadPool>()));
template <class Binding>
auto with_product_attributes(Binding binding) {
  return std::move(binding)
      .template Attr<bool>("transposed_a")
      .template Attr<bool>("transposed_b")
      .template Attr<bool>("skips_zeros")
      .template Attr<bool>("tensor_cores");
}

XLA_FFI_DEFINE_HANDLER(
    product_on_cpu, run_product_on_cpu,
    with_product_attributes(
        ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().RemainingArgs().Ret<ffi::AnyBuffer>()));
XLA_FFI_DEFINE_HANDLER(product_on_cuda, run_product_on_cuda,
                       with_product_attributes(ffi::Ffi::Bind()
                                                   .Ctx<ffi::PlatformStream<void*>>()
                                                   .RemainingArgs()
                                                   .Ret<ffi::AnyBuffer>()
                                                   .Ret<ffi::AnyBuffer>()),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(embedding_on_cpu, run_embedding_on_cpu,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::ThreadPool>()
                           .Arg<ffi::AnyBuffer>()    // terms
                           .Arg<ffi::AnyBuffer>()    // ids
                           .Ret<ffi::AnyBuffer>());  // result
XLA_FFI_DEFINE_HANDLER(embedding_on_cuda, run_embedding_on_cuda,
                       ffi::Ffi::Bind()
                           .Ctx<ffi::PlatformStream<void*>>()
                           .Arg<ffi::AnyBuffer>()   // terms
                           .Arg<ffi::AnyBuffer>()   // ids
                           .Arg<ffi::AnyBuffer>()   // order
                           .Ret<ffi::AnyBuffer>()   // result
                           .Ret<ffi::AnyBuffer>(),  // workspace
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(on_cuda, run_on_cuda,
                       with_arguments(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<void*>>()),
                       {ffi::Traits::kCmdBufferCompatible});
XLA_FFI_DEFINE_HANDLER(on_cuda_instantiate, prepare, ffi::Ffi::BindInstantiate());

}  // namespace

void* ffi_cpu() { return reinterpret_cast<void*>(on_cpu); }
void* ffi_product_cpu() { return reinterpret_cast<void*>(product_on_cpu); }
void* ffi_product_cuda() { return reinterpret_cast<void*>(product_on_cuda); }
void* ffi_cuda() { return reinterpret_cast<void*>(on_cuda); }
void* ffi_embedding_cpu() { return reinterpret_cast<void*>(embedding_on_cpu); }
void* ffi_embedding_cuda() { return reinterpret_cast<void*>(embedding_on_cuda); }

void* empty_handler() {
  XLA_FFI_DEFINE_HANDLER(handler, do_nothing,
                         ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs(),
                         {ffi::Traits::kCmdBufferCompatible});
  return reinterpret_cast<void*>(handler);
}

void* ffi_cuda_instantiate() { return reinterpret_cast<void*>(on_cuda_instantiate); }

int ffi_api_major() { return XLA_FFI_API_MAJOR; }
int ffi_api_minor() { return XLA_FFI_API_MINOR; }

}  // namespace bridge::bindings
