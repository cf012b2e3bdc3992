// Kernels on the OpenMP threads of a framework.
#ifndef BRIDGE_BINDINGS_PYTHON_OPENMP_H_
#define BRIDGE_BINDINGS_PYTHON_OPENMP_H_

#include <Python.h>
#include <bridge/bridge.h>

#include <algorithm>
#include <cstdint>

namespace bridge::bindings {

// Sets the runtime by two of its functions, which GNU's, LLVM's and Intel's runtimes have; 0 for
// none. The runtime is never linked: a second one in the process would compete with the first.
void use_openmp(std::uintptr_t gomp_parallel, std::uintptr_t omp_get_thread_num);

// Returns an executor of `threads` threads of that runtime, or of the library's own pool.
bridge_executor cpu_executor(int32_t threads);

// For fewer multiplications of a product, releasing and retaking the GIL costs more than it gains.
constexpr double kProductReleasesFrom = 1 << 18;

// Runs run(executor) on as many threads, without the GIL if the call is large.
template <class Run>
bridge_status on_threads(bool is_large, long threads, const Run& run) {
  if (!is_large) return run(nullptr);
  PyThreadState* released = PyEval_SaveThread();
  const bridge_executor executor =
      cpu_executor(static_cast<int32_t>(std::clamp(threads, 1L, 1L << 16)));
  const bridge_status status = run(&executor);
  PyEval_RestoreThread(released);
  return status;
}

}  // namespace bridge::bindings

#endif  // BRIDGE_BINDINGS_PYTHON_OPENMP_H_
