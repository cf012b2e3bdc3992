#include "xla_ffi.h"

#include <cstddef>
#include <new>
#include <optional>
#include <string>

#include "bias_gelu_call.h"
#include "cuda_library.h"
#include "xla/ffi/api/ffi.h"
#include "xla_executor.h"

namespace bridge::python {
namespace {

namespace ffi = xla::ffi;

// Calls on fewer elements run in the calling thread: to wake a thread of XLA's pool takes the time
// of tens of thousands of them.
constexpr int64_t kFewElements = int64_t{1} << 17;

int32_t dtype_of(ffi::DataType dtype) {
  switch (dtype) {
    case ffi::DataType::F16:
      return BRIDGE_FLOAT16;
    case ffi::DataType::BF16:
      return BRIDGE_BFLOAT16;
    case ffi::DataType::F32:
      return BRIDGE_FLOAT32;
    case ffi::DataType::F64:
      return BRIDGE_FLOAT64;
    default:
      return -1;
  }
}

void read_buffer(const ffi::AnyBuffer& buffer, Operand* operand) {
  operand->present = true;
  operand->data = buffer.untyped_data();
  operand->dtype = dtype_of(buffer.element_type());
  operand->ndim = static_cast<int32_t>(buffer.dimensions().size());
  operand->shape = buffer.dimensions().begin();
}

// XLA passes only what is there: slots[i] is the place of the i-th buffer among the operands.
std::string place(const ffi::RemainingArgs& args, ffi::Span<const int32_t> slots,
                  size_t operand_count, Operand* operands) {
  if (slots.size() != args.size()) {
    return "attribute slots has " + std::to_string(slots.size()) + " entries for " +
           std::to_string(args.size()) + " buffers";
  }
  for (size_t i = 0; i < args.size(); ++i) {
    const int32_t slot = slots.begin()[i];
    if (slot < 0 || static_cast<size_t>(slot) >= operand_count || operands[slot].present) {
      return "attribute slots has the entry " + std::to_string(slot) +
             ", which is out of range or given twice";
    }
    ffi::ErrorOr<ffi::AnyBuffer> buffer = args.get<ffi::AnyBuffer>(i);
    if (!buffer.has_value()) return buffer.error().message();
    read_buffer(*buffer, &operands[slot]);
  }
  return {};
}

// outputs: bit 0 the full result, bit 1 the column sums.
std::string place(const ffi::RemainingRets& rets, int32_t outputs, size_t extra,
                  Operand places[2]) {
  const size_t expected = (outputs & 1) + ((outputs >> 1) & 1);
  if (outputs < 1 || outputs > 3 || rets.size() != expected + extra) {
    return "attribute outputs is " + std::to_string(outputs) + " for " +
           std::to_string(rets.size()) + " result buffers";
  }
  size_t next = 0;
  for (int32_t i = 0; i < 2; ++i) {
    if ((outputs >> i & 1) == 0) continue;
    ffi::ErrorOr<ffi::Result<ffi::AnyBuffer>> buffer = rets.get<ffi::AnyBuffer>(next++);
    if (!buffer.has_value()) return buffer.error().message();
    read_buffer(**buffer, &places[i]);
  }
  return {};
}

std::string bind_call(const ffi::RemainingArgs& args, const ffi::RemainingRets& rets, int32_t form,
                      int32_t order, int32_t batch_ndim, int32_t factors,
                      ffi::Span<const int32_t> slots, int32_t outputs, size_t extra_results,
                      bridge_bias_gelu* call) {
  if (factors < 0 || factors > BRIDGE_MAX_FACTORS) {
    return "attribute factors is " + std::to_string(factors) + ", expected 0 to " +
           std::to_string(BRIDGE_MAX_FACTORS);
  }
  // Only the operands of this call are made: all that there can be would be a kilobyte to clear.
  alignas(Operand) unsigned char room[kMaxBiasGeluOperands * sizeof(Operand)];
  auto* operands = reinterpret_cast<Operand*>(room);
  Operand results[2];
  const size_t operand_count = 2 * (1 + static_cast<size_t>(factors));
  for (size_t i = 0; i < operand_count; ++i) new (&operands[i]) Operand;
  std::string error = place(args, slots, operand_count, operands);
  if (error.empty()) error = place(rets, outputs, extra_results, results);
  if (!error.empty()) return error;
  return bind_bias_gelu(operands, operand_count, results, form, order, batch_ndim, call).message;
}

ffi::Error status_error(bridge_status status, const char* message) {
  if (status == BRIDGE_OK) return ffi::Error::Success();
  if (status == BRIDGE_INVALID_ARGUMENT) return ffi::Error::InvalidArgument(message);
  return ffi::Error::Internal(message);
}

// XLA does not catch: whatever escaped here would end the process.
template <class Body>
ffi::Error guarded(Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return ffi::Error(ffi::ErrorCode::kResourceExhausted, "bridge: out of memory");
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string("bridge: ") + error.what());
  } catch (...) {
    return ffi::Error::Internal("bridge: unknown exception");
  }
}

ffi::Error bias_gelu_host(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets,
                          int32_t form, int32_t order, int32_t batch_ndim, int32_t factors,
                          ffi::Span<const int32_t> slots, int32_t outputs) {
  return guarded([&] {
    bridge_bias_gelu call;
    const std::string error =
        bind_call(args, rets, form, order, batch_ndim, factors, slots, outputs, 0, &call);
    if (!error.empty()) return ffi::Error::InvalidArgument("bridge bias_gelu: " + error);
    if (call.batch * call.rows * call.cols < kFewElements) {
      return status_error(bridge_bias_gelu_cpu(&call, nullptr), bridge_last_error());
    }
    XlaExecutor threads(&pool);
    const bridge_executor executor = threads.executor();
    return status_error(bridge_bias_gelu_cpu(&call, &executor), bridge_last_error());
  });
}

// The last result buffer is the workspace: memory that XLA plans, so that the call can be captured
// into a command buffer.
ffi::Error bias_gelu_cuda(void* stream, ffi::RemainingArgs args, ffi::RemainingRets rets,
                          int32_t form, int32_t order, int32_t batch_ndim, int32_t factors,
                          ffi::Span<const int32_t> slots, int32_t outputs) {
  return guarded([&] {
    std::string why;
    const CudaLibrary* library = cuda_library(&why);
    if (library == nullptr) {
      return ffi::Error(ffi::ErrorCode::kUnavailable, "bridge bias_gelu: " + why);
    }
    bridge_bias_gelu call;
    const std::string error =
        bind_call(args, rets, form, order, batch_ndim, factors, slots, outputs, 1, &call);
    if (!error.empty()) return ffi::Error::InvalidArgument("bridge bias_gelu: " + error);
    ffi::ErrorOr<ffi::Result<ffi::AnyBuffer>> workspace = rets.get<ffi::AnyBuffer>(rets.size() - 1);
    if (!workspace.has_value()) return workspace.error();
    return status_error(
        library->bias_gelu(&call, (*workspace)->untyped_data(), (*workspace)->size_bytes(), stream),
        library->last_error());
  });
}

template <class Binding>
auto with_attributes(Binding binding) {
  return std::move(binding)
      .RemainingArgs()                                   // the operands that are there
      .RemainingRets()                                   // the outputs that are wanted
      .template Attr<int32_t>("form")                    // bridge_gelu_form
      .template Attr<int32_t>("order")                   // derivative order
      .template Attr<int32_t>("batch_ndim")              // leading dimensions with own row vectors
      .template Attr<int32_t>("factors")                 // pairs after the input
      .template Attr<ffi::Span<const int32_t>>("slots")  // place of each operand
      .template Attr<int32_t>("outputs");                // bit 0: full, bit 1: column sums
}

XLA_FFI_DEFINE_HANDLER(kBiasGeluHost, bias_gelu_host,
                       with_attributes(ffi::Ffi::Bind().Ctx<ffi::ThreadPool>()));
XLA_FFI_DEFINE_HANDLER(kBiasGeluCuda, bias_gelu_cuda,
                       with_attributes(ffi::Ffi::Bind().Ctx<ffi::PlatformStream<void*>>()),
                       {ffi::Traits::kCmdBufferCompatible});

}  // namespace

const FfiHandler kFfiHandlers[] = {
    {"bridge_bias_gelu", "cpu", reinterpret_cast<void*>(+kBiasGeluHost)},
    {"bridge_bias_gelu", "CUDA", reinterpret_cast<void*>(+kBiasGeluCuda)},
    {nullptr, nullptr, nullptr},
};

int ffi_api_major() { return XLA_FFI_API_MAJOR; }
int ffi_api_minor() { return XLA_FFI_API_MINOR; }

}  // namespace bridge::python
