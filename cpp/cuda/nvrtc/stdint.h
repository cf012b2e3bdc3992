// The parts of the standard library that kernels use, for NVRTC, which has none.
#ifndef BRIDGE_CUDA_NVRTC_STDINT_H_
#define BRIDGE_CUDA_NVRTC_STDINT_H_

typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef long intptr_t;
typedef unsigned long uintptr_t;

#define INT32_MAX 0x7FFFFFFF
#define INT64_MIN (-0x7FFFFFFFFFFFFFFFL - 1)

// Builtins of nvcc and of the host's compiler.
#define __builtin_inf() (1e308 * 10)
#define __builtin_nan(text) __longlong_as_double(0x7FF8000000000000L)

#endif  // BRIDGE_CUDA_NVRTC_STDINT_H_
