// The few functions of the CUDA driver that have no equal in the runtime. They serve a launch on a
// device other than the thread's, after which the thread is as before, and kernels that are
// compiled while the process runs.
//
// cudaSetDevice cannot restore the thread's state, because it creates a context on the given
// device. A thread without a context reports device 0; setting that again would create a context of
// hundreds of megabytes on a device that nobody uses. The driver pushes and pops contexts, so that
// a thread can be without one again.
#ifndef BRIDGE_CUDA_DRIVER_H_
#define BRIDGE_CUDA_DRIVER_H_

#include <stddef.h>
#include <stdint.h>

namespace bridge::cuda {

constexpr int kNoDevice = -1;

// These structs have the layout of cuda.h.
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
// Functions of the driver, with the types of its ABI, so that no header of the toolkit is needed.
// They return 0 or an error; a context and a stream are pointers, a device is its number.
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
  // Available from version 11.8 on; nullptr if the driver lacks them.
  int (*launch_kernel_ex)(const LaunchConfig* config, void* kernel, void** params, void** extra);
  int (*func_set_attribute)(void* kernel, int attribute, int value);
  int (*max_active_clusters)(int* count, void* kernel, const LaunchConfig* config);
  int (*max_active_blocks)(int* count, void* kernel, int threads, size_t shared_bytes);
  int (*available_shared)(size_t* bytes, void* kernel, int blocks, int threads);
};

// Returns the driver of this process; nullptr, with *why set, if there is none or it is too old.
const Driver* driver(const char** why);

// Returns the text of a driver error; nullptr for 0.
const char* message_of(const Driver& driver, int error);

// Makes the primary context of a device current, unless a context of that device already is. Sets
// *entered to the device, for `leave`, or to kNoDevice if nothing changed. Returns 0 or an error.
int enter(const Driver& driver, int device, int* entered);

// Enters the device of some memory; does nothing for memory of no device. The stream is not
// queried: the default streams belong to every device, and for others cuStreamGetDevice would
// invalidate a capture.
int enter(const Driver& driver, const void* memory, int* entered);

// Returns the architecture of a device, such as 90; 0 if it is unknown.
int arch_of(const Driver& driver, int device);

// Launches a kernel in clusters of `blocks` blocks, side by side in x. Returns 0 or an error.
int launch_clusters(const Driver& driver, void* kernel, const LaunchConfig& config, int blocks,
                    void** params);

// Allows a kernel `bytes` bytes of dynamic shared memory; returns false if the GPU has less for a
// block.
bool allow_shared(const Driver& driver, void* kernel, size_t bytes);

// Returns the bytes of dynamic shared memory that a block can use while as many blocks fit on a
// multiprocessor as without any; 0 if the driver cannot tell. It may exceed the most that a block
// is allowed.
size_t shared_beside(const Driver& driver, void* kernel, int threads);

// Returns the largest cluster of such blocks, a power of two up to `most`. Beyond 8 blocks, which
// not every GPU supports, the kernel is allowed that many from then on.
int most_in_cluster(const Driver& driver, void* kernel, LaunchConfig config, int most);

// Undoes `enter`: makes the former context current again, or none.
void leave(const Driver& driver, int entered);

}  // namespace bridge::cuda

#endif  // BRIDGE_CUDA_DRIVER_H_
