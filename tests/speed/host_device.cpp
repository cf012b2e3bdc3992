// This CPU in the place of the GPU: the same calls on small arrays, through the CPU functions.
#include <bridge/bridge.h>
#include <string.h>

#include <chrono>

#include "device.h"

namespace bridge::speed {
namespace {

void check(bridge_status status) {
  if (status != BRIDGE_OK) throw Failure(bridge_last_error());
}

struct Run {
  void operator()(const Copy& call) const {
    memcpy(call.to, call.from, static_cast<size_t>(call.bytes));
  }
  void operator()(const bridge_softmax& call) const { check(bridge_softmax_cpu(&call, nullptr)); }
  void operator()(const bridge_softmax_derivative& call) const {
    check(bridge_softmax_derivative_cpu(&call, nullptr));
  }
};

class HostDevice : public Device {
 public:
  void describe(JsonLine* line) const override {
    line->add("name", "this CPU, whose times say nothing of a GPU").add("isa", bridge_cpu_isa());
  }
  // Large enough for several heads of 256 queries.
  Limits limits() const override { return {int64_t{64} << 20, 3 << 17, 1 << 19, 2, 1, 0}; }
  char* allocate(int64_t bytes) override {
    constexpr size_t alignment = Operands::kAlignment;
    memory_.reset(new (std::align_val_t{alignment}) char[static_cast<size_t>(bytes)]);
    return memory_.get();
  }
  void fill(const Operand& operand, uint64_t seed) override {
    if (operand.values == Values::result) {
      memset(operand.data, 0xFF, static_cast<size_t>(operand.bytes()));
      return;
    }
    for (int64_t i = 0; i < operand.count; ++i) store_value(operand, seed, i);
  }
  int64_t count_not_finite(const Operand& result) override {
    int64_t count = 0;
    for (int64_t i = 0; i < result.count; ++i) count += is_finite(result, i) ? 0 : 1;
    return count;
  }
  size_t workspace_bytes(const AnyCall&) const override { return 0; }
  void enqueue(const AnyCall& call, void*, size_t) override { std::visit(Run{}, call); }
  std::vector<double> time(const std::function<void()>& calls, int samples, Launch) override {
    using Clock = std::chrono::steady_clock;
    std::vector<double> seconds;
    for (int i = 0; i <= samples; ++i) {
      const auto start = Clock::now();
      calls();
      if (i > 0) seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
    return seconds;
  }
  void profile(const std::function<void()>& calls) override { calls(); }
  bool still_works() override { return true; }

 private:
  struct Delete {
    void operator()(char* memory) const {
      operator delete[](memory, std::align_val_t{Operands::kAlignment});
    }
  };
  std::unique_ptr<char[], Delete> memory_;
};

}  // namespace

std::unique_ptr<Device> open_device(const std::string&) { return std::make_unique<HostDevice>(); }

}  // namespace bridge::speed
