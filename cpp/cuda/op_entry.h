// The common part of the C functions of every op on CUDA.
#ifndef BRIDGE_CUDA_OP_ENTRY_H_
#define BRIDGE_CUDA_OP_ENTRY_H_

#include <bridge/bridge.h>
#include <stddef.h>

#include "cuda/last_error.h"
#include "cuda/simt.h"

namespace bridge::cuda {

template <class Call>
struct OpEntry {
  const char* name;
  bridge_status (*validate)(const Call& call, char* message, size_t message_bytes);
  // The functions below receive a valid call. is_empty is true for a call that reads and writes
  // nothing.
  bool (*is_empty)(const Call& call);
  size_t (*workspace_bytes)(const Call& call);
  const void* (*output)(const Call& call);
  // Returns NULL or the error.
  const char* (*enqueue)(const Call& call, void* workspace, void* stream);
};

template <class Call>
size_t workspace_bytes(const OpEntry<Call>& op, const Call* call) {
  char message[kMessageBytes];
  if (call == nullptr || op.validate(*call, message, sizeof message) != BRIDGE_OK) return 0;
  return op.workspace_bytes(*call);
}

template <class Call>
bridge_status run(const OpEntry<Call>& op, const Call* call, void* workspace,
                  size_t workspace_bytes, void* stream) {
  if (call == nullptr) return fail(BRIDGE_INVALID_ARGUMENT, op.name, "call is NULL");
  const bridge_status status = op.validate(*call, error_message(), kMessageBytes);
  if (status != BRIDGE_OK) return status;
  if (op.is_empty(*call)) return BRIDGE_OK;
  const size_t needed = op.workspace_bytes(*call);
  if (!is_enough(op.name, workspace, workspace_bytes, needed)) return BRIDGE_INVALID_ARGUMENT;
  int entered = -1;
  const char* error = simt::make_current(op.output(*call), &entered);
  if (error == nullptr) error = op.enqueue(*call, workspace, stream);
  simt::restore_current(entered);
  return error == nullptr ? BRIDGE_OK : fail(BRIDGE_CUDA_ERROR, op.name, error);
}

// Loads kernels, arrays of kernels or lists of kernels onto the current device; returns NULL or the
// error.
template <class Kernels>
const char* load_each(const Kernels& kernels) {
  return kernels.load();
}

template <class Kernels, int kCount>
const char* load_each(const Kernels (&kernels)[kCount]) {
  const char* error = nullptr;
  for (int i = 0; i < kCount && error == nullptr; ++i) error = load_each(kernels[i]);
  return error;
}

template <class... Kernels>
const char* load_all(const Kernels&... kernels) {
  const char* error = nullptr;
  ((error = error == nullptr ? load_each(kernels) : error), ...);
  return error;
}

}  // namespace bridge::cuda

#endif  // BRIDGE_CUDA_OP_ENTRY_H_
