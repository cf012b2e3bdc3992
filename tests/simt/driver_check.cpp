// Checks the device that a call enters and the state that it leaves behind, on a fake driver that
// records the contexts of its devices and the thread's stack of contexts.
#include "cuda/driver.h"

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace {

using namespace bridge::cuda;

constexpr int kDevices = 3;
constexpr int kInvalidContext = 201;
constexpr int kInvalidValue = 1;

// The number of users of each device's primary context, which exists while there are any. The
// address of a context is the address of its device's count.
int g_users[kDevices];
bool g_made[kDevices];  // a context was created that had not existed
std::vector<int> g_stack;
bool g_push_fails;

int g_passed = 0;
int g_failed = 0;

void expect(bool holds, const std::string& what) {
  ++(holds ? g_passed : g_failed);
  if (!holds) std::printf("FAILED: %s\n", what.c_str());
}

int get_current(void** context) {
  *context = g_stack.empty() ? nullptr : &g_users[g_stack.back()];
  return 0;
}

int get_device(int* device) {
  if (g_stack.empty()) return kInvalidContext;
  *device = g_stack.back();
  return 0;
}

int push(void* context) {
  if (g_push_fails) return kInvalidContext;
  g_stack.push_back(static_cast<int>(static_cast<int*>(context) - g_users));
  return 0;
}

int pop(void** context) {
  if (g_stack.empty()) return kInvalidContext;
  *context = &g_users[g_stack.back()];
  g_stack.pop_back();
  return 0;
}

int get_state(int device, unsigned* flags, int* active) {
  *flags = 0;
  *active = g_users[device] > 0;
  return 0;
}

int retain(void** context, int device) {
  g_made[device] |= g_users[device]++ == 0;
  *context = &g_users[device];
  return 0;
}

int release(int device) { return --g_users[device] < 0 ? kInvalidContext : 0; }

// The fake memory of device d starts at address 0x10000 (d + 1).
int pointer_attributes(unsigned count, int* attributes, void** data, uint64_t pointer) {
  for (unsigned i = 0; i < count; ++i) {
    const bool on_device = pointer >= 0x10000;
    switch (attributes[i]) {
      case 2:  // memory type: 1 is the host, 2 a device
        *static_cast<unsigned*>(data[i]) = on_device ? 2 : 1;
        break;
      case 9:  // device ordinal, also for pinned host memory
        *static_cast<int*>(data[i]) = on_device ? static_cast<int>(pointer / 0x10000) - 1 : 0;
        break;
      default:
        return kInvalidValue;
    }
  }
  return 0;
}

int error_string(int error, const char** text) {
  if (error != kInvalidContext) return kInvalidValue;
  *text = "invalid device context";
  return 0;
}

// A GPU with clusters of up to this many blocks; more than 8 only if the kernel allows it.
int g_most_in_cluster;
int g_is_more_allowed;
LaunchConfig g_launched;
LaunchAttribute g_attribute;

int set_attribute(void*, int attribute, int value) {
  if (attribute == 8) return value <= 99 << 10 ? 0 : kInvalidValue;
  if (attribute != 14 || (value != 0 && g_most_in_cluster < 2)) return kInvalidValue;
  g_is_more_allowed = value;
  return 0;
}

bool is_cluster(const LaunchConfig& config) {
  return config.attribute_count == 1 && config.attributes[0].id == 4 &&
         config.attributes[0].value[1] == 1 && config.attributes[0].value[2] == 1 &&
         config.grid_x % config.attributes[0].value[0] == 0;
}

int max_clusters(int* count, void*, const LaunchConfig* config) {
  if (!is_cluster(*config)) return kInvalidValue;
  const auto blocks = static_cast<int>(config->attributes[0].value[0]);
  if (blocks > 8 && g_is_more_allowed == 0) return kInvalidValue;
  *count = blocks <= g_most_in_cluster ? 3 : 0;
  return 0;
}

int launch_ex(const LaunchConfig* config, void*, void** params, void** extra) {
  if (!is_cluster(*config) || params == nullptr || extra != nullptr) return kInvalidValue;
  g_launched = *config;
  g_attribute = config->attributes[0];
  return 0;
}

// A GPU with registers for three blocks, which share 228 KiB of shared memory.
int max_blocks(int* count, void*, int threads, size_t shared_bytes) {
  if (threads != 256 || shared_bytes != 0) return kInvalidValue;
  *count = 3;
  return 0;
}

int available_shared(size_t* bytes, void*, int blocks, int threads) {
  if (blocks != 3 || threads != 256) return kInvalidValue;
  *bytes = size_t{75} << 10;
  return 0;
}

Driver fake() {
  Driver driver{};
  driver.ctx_get_current = get_current;
  driver.ctx_get_device = get_device;
  driver.ctx_push_current = push;
  driver.ctx_pop_current = pop;
  driver.primary_ctx_get_state = get_state;
  driver.primary_ctx_retain = retain;
  driver.primary_ctx_release = release;
  driver.pointer_get_attributes = pointer_attributes;
  driver.get_error_string = error_string;
  driver.launch_kernel_ex = launch_ex;
  driver.func_set_attribute = set_attribute;
  driver.max_active_clusters = max_clusters;
  driver.max_active_blocks = max_blocks;
  driver.available_shared = available_shared;
  return driver;
}

const void* memory_of(int device) {
  return reinterpret_cast<const void*>(uintptr_t{0x10000} * (device + 1));
}

// Sets the devices in use elsewhere in the process (0 and 1, or only 1), and the thread's context
// stack.
void begin(std::vector<int> used, std::vector<int> stack) {
  for (int device = 0; device < kDevices; ++device) g_users[device] = g_made[device] = 0;
  for (int device : used) ++g_users[device];
  g_stack = std::move(stack);
  g_push_fails = false;
}

// Checks a call that must run on device `wanted` (kNoDevice: on the thread's own).
void check(const std::string& what, const void* memory, int wanted) {
  const Driver driver = fake();
  const std::vector<int> before = g_stack;
  const std::vector<int> users(g_users, g_users + kDevices);
  int entered = 7;
  expect(enter(driver, memory, &entered) == 0, what + ": enters");
  if (wanted != kNoDevice) {
    expect(!g_stack.empty() && g_stack.back() == wanted, what + ": is on the device");
  } else {
    expect(g_stack == before, what + ": stays");
  }
  leave(driver, entered);
  expect(g_stack == before, what + ": the thread is as it was");
  for (int device = 0; device < kDevices; ++device) {
    expect(g_users[device] == users[device], what + ": no context is kept");
    expect(!g_made[device], what + ": no context is made");
  }
}

void check_every_place() {
  for (const std::vector<int>& used : {std::vector<int>{1}, std::vector<int>{0, 1, 2}}) {
    for (const std::vector<int>& stack :
         {std::vector<int>{}, std::vector<int>{1}, std::vector<int>{1, 1}}) {
      begin(used, stack);
      check("memory of a device", memory_of(1), 1);
      check("no memory", nullptr, kNoDevice);
      check("memory of the host", reinterpret_cast<void*>(64), kNoDevice);
    }
    // The thread is on another device, whose context stays current.
    if (used.size() == 1) continue;
    begin(used, {0, 2});
    check("memory of another device", memory_of(1), 1);
    check("memory of the device before the last", memory_of(0), 0);
  }
}

void check_clusters() {
  const Driver driver = fake();
  LaunchConfig config{};
  config.block_x = 256;
  for (const int most : {1, 2, 8, 16}) {
    g_most_in_cluster = most;
    expect(most_in_cluster(driver, &config, config, 16) == most, "as many as the GPU takes");
    expect(most < 2 || g_is_more_allowed == (most > 8), "more than 8 are allowed where they are");
  }
  expect(most_in_cluster(driver, &config, config, 4) == 4, "no more than are wanted");
  Driver old = driver;
  old.max_active_clusters = nullptr;
  expect(most_in_cluster(old, &config, config, 16) == 1, "a driver that knows no clusters");
  expect(allow_shared(driver, &config, 99 << 10), "as much shared memory as the GPU has");
  expect(!allow_shared(driver, &config, 100 << 10), "and no more");
  expect(shared_beside(driver, &config, 256) == size_t{75} << 10, "as much as three blocks have");
  expect(shared_beside(driver, &config, 128) == 0, "nothing where the driver fails");
  old.available_shared = nullptr;
  expect(shared_beside(old, &config, 256) == 0, "nothing that a driver cannot tell");
  old.func_set_attribute = nullptr;
  expect(!allow_shared(old, &config, 1), "none that a driver cannot allow");
  void* params[] = {nullptr};
  config.grid_x = 12;
  expect(launch_clusters(driver, &config, config, 4, params) == 0 && g_launched.grid_x == 12 &&
             g_launched.block_x == 256 && g_attribute.value[0] == 4,
         "a launch in clusters");
}

void check_failures() {
  const Driver driver = fake();
  begin({0, 1}, {0});
  g_push_fails = true;
  int entered = 7;
  expect(enter(driver, memory_of(1), &entered) == kInvalidContext, "a push that fails");
  expect(entered == kNoDevice && g_users[1] == 1, "leaves nothing behind");
  leave(driver, entered);
  expect(g_stack.size() == 1, "and nothing to leave");
  expect(message_of(driver, 0) == nullptr, "no error has no message");
  expect(std::string(message_of(driver, kInvalidContext)) == "invalid device context",
         "an error has the driver's message");
  expect(message_of(driver, 999) != nullptr, "an unknown error has a message");
}

}  // namespace

int main() {
  check_every_place();
  check_clusters();
  check_failures();
  std::printf("driver: %d passed, %d failed\n", g_passed, g_failed);
  return g_failed == 0 ? 0 : 1;
}
