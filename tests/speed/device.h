// Where the calls run. Linked with cuda_device.cu it is a GPU and the CUDA library; linked with
// host_device.cpp it is this CPU and the CPU library, on small arrays, so that everything but the
// GPU is tested without one.
#ifndef BRIDGE_TESTS_SPEED_DEVICE_H_
#define BRIDGE_TESTS_SPEED_DEVICE_H_

#include <stddef.h>
#include <stdint.h>

#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "json_line.h"
#include "operands.h"
#include "rows.h"

namespace bridge::speed {

// Ends the program with this status and one line on stderr.
struct Exit {
  int status;
  std::string why;
};
constexpr int kFailed = 1, kBadArgument = 2, kNoDevice = 3;

// What went wrong with one row.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Limits {
  int64_t memory;         // bytes that may be allocated
  int64_t array_bytes;    // of the first operand of a call
  int64_t distinct;       // the calls of a sample go through so many bytes before they come again
  int samples;            // of each row
  int fewest_calls;       // of a sample
  double sample_seconds;  // or as many calls as take so long
};

enum class Launch { one_by_one, as_graph };

class Device {
 public:
  virtual ~Device() = default;
  virtual void describe(JsonLine* line) const = 0;
  virtual Limits limits() const = 0;
  // Once; freed with the device.
  virtual char* allocate(int64_t bytes) = 0;
  // Everything from here on throws Failure, and but for `time` nothing waits without need.
  virtual void fill(const Operand& operand, uint64_t seed) = 0;
  virtual int64_t count_not_finite(const Operand& result) = 0;
  virtual size_t workspace_bytes(const AnyCall& call) const = 0;
  virtual void enqueue(const AnyCall& call, void* workspace, size_t workspace_bytes) = 0;
  // The seconds that each of several turns of `calls` takes, after one that is not counted.
  virtual std::vector<double> time(const std::function<void()>& calls, int samples,
                                   Launch launch) = 0;
  // A profiler that is told to wait looks at these alone.
  virtual void profile(const std::function<void()>& calls) = 0;
  // Whether another call may succeed.
  virtual bool still_works() = 0;
};

// Throws Exit. The path may be empty: the library is then looked for where the system looks, and
// beside the program.
std::unique_ptr<Device> open_device(const std::string& library);

}  // namespace bridge::speed

#endif  // BRIDGE_TESTS_SPEED_DEVICE_H_
