// Kernels on the OpenMP threads of a framework.
#ifndef BRIDGE_BINDINGS_PYTHON_OPENMP_H_
#define BRIDGE_BINDINGS_PYTHON_OPENMP_H_

#include <bridge/bridge.h>

#include <cstdint>

namespace bridge::bindings {

// Sets the runtime by two of its functions, which GNU's, LLVM's and Intel's runtimes have; 0 for
// none. The runtime is never linked: a second one in the process would compete with the first.
void use_openmp(std::uintptr_t gomp_parallel, std::uintptr_t omp_get_thread_num);

// Returns an executor of `threads` threads of that runtime, or of the library's own pool.
bridge_executor cpu_executor(int32_t threads);

}  // namespace bridge::bindings

#endif  // BRIDGE_BINDINGS_PYTHON_OPENMP_H_
