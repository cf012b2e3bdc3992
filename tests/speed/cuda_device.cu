// The GPU: the calls go through the C functions of a libbridge_cuda that is loaded at run time, so
// that the very library that ships is timed. Its CUDA runtime is a copy of its own; streams and
// memory belong to the driver and serve both.
#include <bridge/bridge.h>
#include <cuda_profiler_api.h>
#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <tuple>

#include "device.h"

namespace bridge::speed {
namespace {

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();
  throw Failure(std::string(what) + ": " + cudaGetErrorString(error));
}

constexpr int kThreads = 256;

__global__ void fill_kernel(const __grid_constant__ Operand operand, uint64_t seed) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < operand.count; i += step)
    store_value(operand, seed, i);
}

__global__ void count_kernel(const __grid_constant__ Operand result, unsigned long long* found) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  unsigned long long count = 0;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < result.count; i += step)
    count += is_finite(result, i) ? 0 : 1;
  if (count > 0) atomicAdd(found, count);
}

// Every thread has four vectors of 16 bytes in flight.
constexpr int kCopied = 4;
__global__ void copy_kernel(const uint4* from, uint4* to, int64_t vectors) {
  const int64_t first = int64_t{blockIdx.x} * kThreads * kCopied + threadIdx.x;
  uint4 value[kCopied];
#pragma unroll
  for (int i = 0; i < kCopied; ++i)
    if (first + i * kThreads < vectors) value[i] = from[first + i * kThreads];
#pragma unroll
  for (int i = 0; i < kCopied; ++i)
    if (first + i * kThreads < vectors) to[first + i * kThreads] = value[i];
}

// An op's functions in the library.
template <class Call>
struct Functions {
  size_t (*workspace_bytes)(const Call*);
  bridge_status (*enqueue)(const Call*, void*, size_t, void*);
};

class Library {
 public:
  explicit Library(const std::string& path) {
    const char* file = path.empty() ? "libbridge_cuda.so" : path.c_str();
    handle_ = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) throw Exit{kBadArgument, std::string("--library: ") + dlerror()};
    find(&std::get<0>(ops_), "softmax");
    find(&std::get<1>(ops_), "softmax_derivative");
    find(&last_error, "bridge_cuda_last_error");
    find(&archs, "bridge_cuda_archs");
    find(&preload, "bridge_cuda_preload");
  }

  template <class Call>
  const Functions<Call>& of(const Call&) const {
    return std::get<Functions<Call>>(ops_);
  }

  // Of the file that was found.
  std::string path() const {
    Dl_info info{};
    dladdr(reinterpret_cast<const void*>(preload), &info);
    return info.dli_fname != nullptr ? info.dli_fname : "";
  }

  decltype(&bridge_cuda_last_error) last_error;
  decltype(&bridge_cuda_archs) archs;
  decltype(&bridge_cuda_preload) preload;

 private:
  template <class Function>
  void find(Function* function, const std::string& name) {
    *function = reinterpret_cast<Function>(dlsym(handle_, name.c_str()));
    if (*function == nullptr) throw Exit{kBadArgument, std::string("--library: ") + dlerror()};
  }
  template <class Call>
  void find(Functions<Call>* functions, const std::string& op) {
    find(&functions->enqueue, "bridge_" + op + "_cuda");
    find(&functions->workspace_bytes, "bridge_" + op + "_cuda_workspace");
  }

  void* handle_;  // never closed: its kernels may still run when the program ends
  std::tuple<Functions<bridge_softmax>, Functions<bridge_softmax_derivative>> ops_;
};

class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "cudaEventCreate"); }
  Event(Event&& other) noexcept : event_(other.event_) { other.event_ = nullptr; }
  ~Event() {
    if (event_ != nullptr) cudaEventDestroy(event_);
  }
  void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  double seconds_since(const Event& start) const {
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, start.event_, event_), "cudaEventElapsedTime");
    return milliseconds * 1e-3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// What `calls` enqueues on the stream, as a graph.
class Graph {
 public:
  Graph(cudaStream_t stream, const std::function<void()>& calls) {
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
          "cudaStreamBeginCapture");
    cudaGraph_t graph = nullptr;
    try {
      calls();
    } catch (...) {
      cudaStreamEndCapture(stream, &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      cudaGetLastError();
      throw;
    }
    check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    const cudaError_t error = cudaGraphInstantiate(&graph_, graph, 0);
    cudaGraphDestroy(graph);
    check(error, "cudaGraphInstantiate");
  }
  Graph(const Graph&) = delete;
  ~Graph() {
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
  }
  void launch(cudaStream_t stream) { check(cudaGraphLaunch(graph_, stream), "cudaGraphLaunch"); }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

int64_t attribute(cudaDeviceAttr which) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, 0), "cudaDeviceGetAttribute");
  return value;
}

class CudaDevice : public Device {
 public:
  explicit CudaDevice(const std::string& library) : library_(library) {
    check(cudaFree(nullptr), "cudaFree");  // makes the context, without which nothing is loaded
    if (library_.preload(0) != BRIDGE_OK)
      throw Exit{kFailed, std::string("the library does not run here: ") + library_.last_error()};
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    check(cudaMalloc(&found_, sizeof *found_), "cudaMalloc");
  }
  ~CudaDevice() override {
    cudaFree(memory_);
    cudaFree(found_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  void describe(JsonLine* line) const override {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
    int driver = 0, runtime = 0;
    check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
    check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
    line->add("name", std::string(properties.name))
        .add("compute_capability",
             std::to_string(properties.major) + "." + std::to_string(properties.minor))
        .add("multiprocessors", int64_t{properties.multiProcessorCount})
        .add("memory_bytes", static_cast<int64_t>(properties.totalGlobalMem))
        .add("l2_bytes", int64_t{properties.l2CacheSize})
        .add("clock_khz", attribute(cudaDevAttrClockRate))
        .add("memory_clock_khz", attribute(cudaDevAttrMemoryClockRate))
        .add("memory_bus_bits", attribute(cudaDevAttrGlobalMemoryBusWidth))
        .add("ecc", attribute(cudaDevAttrEccEnabled) != 0)
        .add("driver", int64_t{driver})
        .add("runtime", int64_t{runtime})
        .add("library", library_.path())
        .add("library_archs", library_.archs());
  }

  Limits limits() const override {
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return {static_cast<int64_t>(free / 10 * 9), int64_t{1} << 30, int64_t{2} << 30, 12, 3, 2e-3};
  }

  char* allocate(int64_t bytes) override {
    check(cudaMalloc(&memory_, static_cast<size_t>(bytes)), "cudaMalloc");
    return static_cast<char*>(memory_);
  }

  void fill(const Operand& operand, uint64_t seed) override {
    if (operand.values == Values::result) {
      check(cudaMemsetAsync(operand.data, 0xFF, static_cast<size_t>(operand.bytes()), stream_),
            "cudaMemsetAsync");
      return;
    }
    fill_kernel<<<blocks(operand.count), kThreads, 0, stream_>>>(operand, seed);
    check(cudaGetLastError(), "fill_kernel");
  }

  int64_t count_not_finite(const Operand& result) override {
    unsigned long long count = 0;
    check(cudaMemsetAsync(found_, 0, sizeof *found_, stream_), "cudaMemsetAsync");
    count_kernel<<<blocks(result.count), kThreads, 0, stream_>>>(result, found_);
    check(cudaGetLastError(), "count_kernel");
    check(cudaMemcpyAsync(&count, found_, sizeof count, cudaMemcpyDeviceToHost, stream_),
          "cudaMemcpyAsync");
    wait();
    return static_cast<int64_t>(count);
  }

  size_t workspace_bytes(const AnyCall& call) const override {
    return std::visit([this](const auto& one) { return bytes_of(one); }, call);
  }

  void enqueue(const AnyCall& call, void* workspace, size_t workspace_bytes) override {
    std::visit([&](const auto& one) { run(one, workspace, workspace_bytes); }, call);
  }

  // No gap between the turns: the host is ahead, so that an event's time is the end of one turn and
  // the start of the next.
  std::vector<double> time(const std::function<void()>& calls, int samples,
                           Launch launch) override {
    std::unique_ptr<Graph> graph;
    if (launch == Launch::as_graph) graph = std::make_unique<Graph>(stream_, calls);
    std::vector<Event> ends(static_cast<size_t>(samples) + 1);
    for (Event& end : ends) {
      if (graph != nullptr)
        graph->launch(stream_);
      else
        calls();
      end.record(stream_);
    }
    wait();
    std::vector<double> seconds;
    for (size_t i = 1; i < ends.size(); ++i) seconds.push_back(ends[i].seconds_since(ends[i - 1]));
    return seconds;
  }

  void profile(const std::function<void()>& calls) override {
    wait();
    check(cudaProfilerStart(), "cudaProfilerStart");
    calls();
    wait();
    check(cudaProfilerStop(), "cudaProfilerStop");
  }

  bool still_works() override {
    cudaGetLastError();
    return cudaDeviceSynchronize() == cudaSuccess;
  }

 private:
  static unsigned blocks(int64_t count) {
    return static_cast<unsigned>(std::clamp<int64_t>(count / kThreads, 1, 8192));
  }
  void wait() { check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

  size_t bytes_of(const Copy&) const { return 0; }
  template <class One>
  size_t bytes_of(const One& call) const {
    return library_.of(call).workspace_bytes(&call);
  }
  void run(const Copy& call, void*, size_t) {
    if (!call.by_kernel) {
      check(cudaMemcpyAsync(call.to, call.from, static_cast<size_t>(call.bytes),
                            cudaMemcpyDeviceToDevice, stream_),
            "cudaMemcpyAsync");
      return;
    }
    const int64_t vectors = call.bytes / int64_t{sizeof(uint4)}, each = kThreads * kCopied;
    copy_kernel<<<static_cast<unsigned>((vectors + each - 1) / each), kThreads, 0, stream_>>>(
        static_cast<const uint4*>(call.from), static_cast<uint4*>(call.to), vectors);
    check(cudaGetLastError(), "copy_kernel");
  }
  template <class One>
  void run(const One& call, void* workspace, size_t workspace_bytes) {
    if (library_.of(call).enqueue(&call, workspace, workspace_bytes, stream_) != BRIDGE_OK)
      throw Failure(library_.last_error());
  }

  Library library_;
  cudaStream_t stream_ = nullptr;
  void* memory_ = nullptr;
  unsigned long long* found_ = nullptr;
};

}  // namespace

std::unique_ptr<Device> open_device(const std::string& library) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0)
    throw Exit{kNoDevice, std::string("no CUDA device answers: ") +
                              (error != cudaSuccess ? cudaGetErrorString(error) : "there is none")};
  return std::make_unique<CudaDevice>(library);
}

}  // namespace bridge::speed
