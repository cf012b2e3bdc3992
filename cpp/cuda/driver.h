// The few functions of the CUDA driver that the runtime has no equal of, and what they are for: a
// launch on another device than the thread's, after which the thread is as it was, and kernels that
// were compiled while the process runs.
//
// cudaSetDevice cannot go back. It makes a context on the device that it is told, so going back to
// a device that nobody uses, as a thread without a context believes itself on device 0, would make
// a context of hundreds of megabytes there. The driver pushes and pops contexts, none included.
#ifndef BRIDGE_CUDA_DRIVER_H_
#define BRIDGE_CUDA_DRIVER_H_

#include <stddef.h>
#include <stdint.h>

namespace bridge::cuda {

constexpr int kNoDevice = -1;

// As cuda.h has them.
struct LaunchAttribute {
  int id;
  int padding;
  uint32_t value[16];
};
struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  void* stream;
  const LaunchAttribute* attributes;
  unsigned attribute_count;
};
// With the types of the driver's ABI, which needs no header of the toolkit: the functions return 0
// or an error, a context and a stream are pointers, a device is its number.
struct Driver {
  int (*ctx_get_current)(void** context);
  int (*ctx_get_device)(int* device);
  int (*ctx_push_current)(void* context);
  int (*ctx_pop_current)(void** context);
  int (*primary_ctx_get_state)(int device, unsigned* flags, int* active);
  int (*primary_ctx_retain)(void** context, int device);
  int (*primary_ctx_release)(int device);
  int (*pointer_get_attributes)(unsigned count, int* attributes, void** data, uint64_t pointer);
  int (*get_error_string)(int error, const char** text);
  int (*module_load_data)(void** code, const void* image);
  int (*module_unload)(void* code);
  int (*module_get_function)(void** kernel, void* code, const char* name);
  int (*launch_kernel)(void* kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                       unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                       void* stream, void** params, void** extra);
  int (*device_get_attribute)(int* value, int attribute, int device);
  // From 11.8 on; nullptr where the driver lacks them.
  int (*launch_kernel_ex)(const LaunchConfig* config, void* kernel, void** params, void** extra);
  int (*func_set_attribute)(void* kernel, int attribute, int value);
  int (*max_active_clusters)(int* count, void* kernel, const LaunchConfig* config);
  int (*max_active_blocks)(int* count, void* kernel, int threads, size_t shared_bytes);
  int (*available_shared)(size_t* bytes, void* kernel, int blocks, int threads);
};

// The driver of this process; nullptr with *why set where there is none or it is too old.
const Driver* driver(const char** why);

// What an error of the driver means; nullptr for 0.
const char* message_of(const Driver& driver, int error);

// Makes the primary context of a device current, unless a context of that device is. *entered is
// then the device, for `leave`, and kNoDevice where nothing changed. Returns 0 or an error.
int enter(const Driver& driver, int device, int* entered);

// The same with the device of some memory; nothing of memory that is no device's. The stream is not
// asked: the default ones belong to every device, and of others cuStreamGetDevice would invalidate
// a capture.
int enter(const Driver& driver, const void* memory, int* entered);

// The architecture of a device, as 90; 0 where it cannot be told.
int arch_of(const Driver& driver, int device);

// Launches a kernel in clusters of so many blocks, side by side in x. Returns 0 or an error.
int launch_clusters(const Driver& driver, void* kernel, const LaunchConfig& config, int blocks,
                    void** params);

// Lets a kernel have so much dynamic shared memory; false where the GPU has less for a block.
bool allow_shared(const Driver& driver, void* kernel, size_t bytes);

// How much dynamic shared memory a block may have where as many blocks have room on a
// multiprocessor as without; 0 where the driver cannot tell. It may be more than one may be
// allowed.
size_t shared_beside(const Driver& driver, void* kernel, int threads);

// The largest power of two up to `most` of which a cluster of such blocks may be. Where it is more
// than 8, which not every GPU takes, the kernel is allowed to have so many from then on.
int most_in_cluster(const Driver& driver, void* kernel, LaunchConfig config, int most);

// Undoes `enter`: current is again what was, be it no context.
void leave(const Driver& driver, int entered);

}  // namespace bridge::cuda

#endif  // BRIDGE_CUDA_DRIVER_H_
