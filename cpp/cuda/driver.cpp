#include "cuda/driver.h"

#include <dlfcn.h>

#include <type_traits>

namespace bridge::cuda {
namespace {

// Values from the driver's header cuda.h.
constexpr int kMemoryType = 2;
constexpr int kDeviceOrdinal = 9;
constexpr int kDeviceMemory = 2;
constexpr int kComputeCapabilityMajor = 75;
constexpr int kComputeCapabilityMinor = 76;
constexpr int kMaxDynamicSharedBytes = 8;
constexpr int kNonPortableClusterSizeAllowed = 14;
constexpr int kClusterDimension = 4;
constexpr int kPortableCluster = 8;

struct Loaded {
  Driver driver{};
  const char* why = nullptr;
};

Loaded load() {
  Loaded loaded;
  // The runtime has opened it already, under the same name.
  void* handle = dlopen("libcuda.so.1", RTLD_NOW);
  if (handle == nullptr) {
    loaded.why = "there is no CUDA driver";
    return loaded;
  }
  auto find = [&](const char* name, auto** function) {
    *function = reinterpret_cast<std::remove_reference_t<decltype(*function)>>(dlsym(handle, name));
    return *function != nullptr;
  };
  Driver& driver = loaded.driver;
  find("cuLaunchKernelEx", &driver.launch_kernel_ex);
  find("cuFuncSetAttribute", &driver.func_set_attribute);
  find("cuOccupancyMaxActiveClusters", &driver.max_active_clusters);
  find("cuOccupancyMaxActiveBlocksPerMultiprocessor", &driver.max_active_blocks);
  find("cuOccupancyAvailableDynamicSMemPerBlock", &driver.available_shared);
  const bool complete = find("cuCtxGetCurrent", &driver.ctx_get_current) &&
                        find("cuCtxGetDevice", &driver.ctx_get_device) &&
                        find("cuCtxPushCurrent_v2", &driver.ctx_push_current) &&
                        find("cuCtxPopCurrent_v2", &driver.ctx_pop_current) &&
                        find("cuDevicePrimaryCtxGetState", &driver.primary_ctx_get_state) &&
                        find("cuDevicePrimaryCtxRetain", &driver.primary_ctx_retain) &&
                        find("cuDevicePrimaryCtxRelease_v2", &driver.primary_ctx_release) &&
                        find("cuPointerGetAttributes", &driver.pointer_get_attributes) &&
                        find("cuGetErrorString", &driver.get_error_string) &&
                        find("cuModuleLoadData", &driver.module_load_data) &&
                        find("cuModuleUnload", &driver.module_unload) &&
                        find("cuModuleGetFunction", &driver.module_get_function) &&
                        find("cuLaunchKernel", &driver.launch_kernel) &&
                        find("cuDeviceGetAttribute", &driver.device_get_attribute);
  if (!complete) loaded.why = "the CUDA driver lacks a function of version 11";
  return loaded;
}

// Finds the device of some memory; kNoDevice for memory of no device.
int device_of_memory(const Driver& driver, const void* memory, int* device) {
  *device = kNoDevice;
  if (memory == nullptr) return 0;
  int type = 0;
  int ordinal = kNoDevice;
  int attributes[] = {kMemoryType, kDeviceOrdinal};
  void* data[] = {&type, &ordinal};
  const int error =
      driver.pointer_get_attributes(2, attributes, data, reinterpret_cast<uintptr_t>(memory));
  if (error == 0 && type == kDeviceMemory && ordinal >= 0) *device = ordinal;
  return error;
}

// The configuration of a launch in clusters of `blocks` blocks.
struct ClusterConfig {
  LaunchConfig config;
  LaunchAttribute cluster;

  ClusterConfig(const LaunchConfig& given, int blocks)
      : config(given), cluster{kClusterDimension, 0, {static_cast<uint32_t>(blocks), 1, 1}} {
    config.attributes = &cluster;
    config.attribute_count = 1;
  }
  ClusterConfig(const ClusterConfig&) = delete;  // it points to itself
  ClusterConfig& operator=(const ClusterConfig&) = delete;
};

}  // namespace

const Driver* driver(const char** why) {
  static const Loaded loaded = load();
  *why = loaded.why;
  return loaded.why == nullptr ? &loaded.driver : nullptr;
}

const char* message_of(const Driver& driver, int error) {
  const char* text = nullptr;
  if (error == 0) return nullptr;
  if (driver.get_error_string(error, &text) == 0 && text != nullptr) return text;
  return "an error that the CUDA driver has no name for";
}

int enter(const Driver& driver, int device, int* entered) {
  *entered = kNoDevice;
  void* context = nullptr;
  if (const int error = driver.ctx_get_current(&context)) return error;
  if (context != nullptr) {
    int current = kNoDevice;
    if (const int error = driver.ctx_get_device(&current)) return error;
    if (current == device) return 0;
  }
  if (const int error = driver.primary_ctx_retain(&context, device)) return error;
  if (const int error = driver.ctx_push_current(context)) {
    driver.primary_ctx_release(device);
    return error;
  }
  *entered = device;
  return 0;
}

int enter(const Driver& driver, const void* memory, int* entered) {
  *entered = kNoDevice;
  int device = kNoDevice;
  if (const int error = device_of_memory(driver, memory, &device)) return error;
  return device == kNoDevice ? 0 : enter(driver, device, entered);
}

int arch_of(const Driver& driver, int device) {
  int major = 0, minor = 0;
  if (driver.device_get_attribute(&major, kComputeCapabilityMajor, device) != 0 ||
      driver.device_get_attribute(&minor, kComputeCapabilityMinor, device) != 0) {
    return 0;
  }
  return 10 * major + minor;
}

int launch_clusters(const Driver& driver, void* kernel, const LaunchConfig& config, int blocks,
                    void** params) {
  const ClusterConfig clusters(config, blocks);
  return driver.launch_kernel_ex(&clusters.config, kernel, params, nullptr);
}

bool allow_shared(const Driver& driver, void* kernel, size_t bytes) {
  return driver.func_set_attribute != nullptr &&
         driver.func_set_attribute(kernel, kMaxDynamicSharedBytes, static_cast<int>(bytes)) == 0;
}

size_t shared_beside(const Driver& driver, void* kernel, int threads) {
  int blocks = 0;
  size_t bytes = 0;
  if (driver.max_active_blocks == nullptr || driver.available_shared == nullptr ||
      driver.max_active_blocks(&blocks, kernel, threads, 0) != 0 || blocks == 0 ||
      driver.available_shared(&bytes, kernel, blocks, threads) != 0) {
    return 0;
  }
  return bytes;
}

int most_in_cluster(const Driver& driver, void* kernel, LaunchConfig config, int most) {
  if (driver.launch_kernel_ex == nullptr || driver.func_set_attribute == nullptr ||
      driver.max_active_clusters == nullptr) {
    return 1;
  }
  for (int blocks = most; blocks > 1; blocks /= 2) {
    const bool is_portable = blocks <= kPortableCluster;
    if (driver.func_set_attribute(kernel, kNonPortableClusterSizeAllowed, !is_portable) != 0)
      continue;
    config.grid_x = static_cast<unsigned>(blocks);
    const ClusterConfig clusters(config, blocks);
    int count = 0;
    if (driver.max_active_clusters(&count, kernel, &clusters.config) == 0 && count > 0)
      return blocks;
  }
  return 1;
}

void leave(const Driver& driver, int entered) {
  if (entered == kNoDevice) return;
  void* context = nullptr;
  driver.ctx_pop_current(&context);
  driver.primary_ctx_release(entered);
}

}  // namespace bridge::cuda
