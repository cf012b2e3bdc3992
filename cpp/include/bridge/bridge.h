/* The kernel library: plain structs in, a status code out. Nothing is thrown across this border,
 * nothing here knows of Python, PyTorch or XLA, and no function keeps a pointer after it returns
 * (the CUDA functions enqueue work on the caller's stream and return at once). */
#ifndef BRIDGE_BRIDGE_H_
#define BRIDGE_BRIDGE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum bridge_status {
  BRIDGE_OK = 0,
  BRIDGE_INVALID_ARGUMENT = 1, /* the call itself is malformed: see bridge_last_error() */
  BRIDGE_OUT_OF_MEMORY = 2,
  BRIDGE_UNAVAILABLE = 3, /* no CUDA library, driver or device */
  BRIDGE_CUDA_ERROR = 4,
  BRIDGE_INTERNAL = 5
} bridge_status;

typedef enum bridge_dtype {
  BRIDGE_FLOAT16 = 0,
  BRIDGE_BFLOAT16 = 1,
  BRIDGE_FLOAT32 = 2,
  BRIDGE_FLOAT64 = 3,
  /* Of masks and integer operands. */
  BRIDGE_BOOL = 4,
  BRIDGE_UINT8 = 5,
  BRIDGE_INT64 = 6,
  BRIDGE_UINT32 = 7,
  BRIDGE_INT8 = 8,
  BRIDGE_INT16 = 9,
  BRIDGE_INT32 = 10,
  BRIDGE_UINT16 = 11,
  BRIDGE_UINT64 = 12,
  /* Of quantised numbers, as int8 is: kernels read and write them, and compute in float32. */
  BRIDGE_FLOAT8_E4M3FN = 13,
  BRIDGE_FLOAT8_E5M2 = 14,
  BRIDGE_FLOAT8_E8M0FNU = 15
} bridge_dtype;

enum { BRIDGE_MAX_DIMS = 8 };

/* An array of a program, over the dimensions of the call and its columns. Strides count elements; 0
 * where the array is the same along a dimension, or has none of its own. */
typedef struct bridge_program_array {
  void* data;    /* not NULL, unless the array has no elements */
  int32_t dtype; /* bridge_dtype */
  int32_t pairs; /* halves: 1 where the two alternate, col_stride from pair to pair; see role */
  int64_t stride[BRIDGE_MAX_DIMS];
  int64_t col_stride;
} bridge_program_array;

/* A program (cpp/program/program.h) on rows of `cols` elements, numbered by `dims` leading
 * dimensions. The first batch_dims of these are batches: column sums go over the rows of one, an
 * integer is one's, and the numbers by which random words are drawn are row * index_cols + column
 * from each one's first row on.
 *
 * The arithmetic is float64 if any floating array is, else float32; what a primitive computes, the
 * tree of row sums and that of column sums are those of docs/numerics.md, and every result is
 * rounded once; a number beyond an 8-bit dtype's largest becomes that. A result of role full or
 * halves may be the same memory with the same strides as an operand of its role and dtype; results
 * overlap nothing otherwise. */
enum { BRIDGE_MAX_PROGRAM_OPERANDS = 64, BRIDGE_MAX_PROGRAM_RESULTS = 31 };
typedef struct bridge_program {
  const int32_t* code;
  int64_t words;
  int32_t dims;
  int32_t batch_dims;
  int64_t size[BRIDGE_MAX_DIMS];
  int64_t cols;
  int64_t index_cols;
  int32_t operands;
  int32_t results;
  const bridge_program_array* operand;
  const bridge_program_array* result;
} bridge_program;

/* Runs task(task_context, i) once for every i in [0, tasks), in any order, on at most `threads`
 * threads, and returns when all are done. NULL run (or a NULL executor) means: in this thread. */
typedef void (*bridge_task)(void* task_context, int64_t index);
typedef struct bridge_executor {
  void* context;
  int32_t threads;
  void (*run)(void* context, int64_t tasks, bridge_task task, void* task_context);
} bridge_executor;

/* The library's own thread pool, at most `threads` wide (>= 1, the calling thread included); the
 * workers start at the first use and survive a fork by starting anew. */
bridge_executor bridge_pool(int32_t threads);

/* The message of the last call on this thread that did not return BRIDGE_OK. */
const char* bridge_last_error(void);

/* The instruction sets compiled in, strongest first, NULL-terminated ("x86-64-v4", "x86-64-v3",
 * "x86-64", or "aarch64"), and the one in use: the strongest that this processor has, unless
 * the environment variable BRIDGE_CPU_ISA or bridge_set_cpu_isa names another. */
const char* const* bridge_cpu_isas(void);
const char* bridge_cpu_isa(void);
bridge_status bridge_set_cpu_isa(const char* name); /* NULL: back to the default choice */

bridge_status bridge_program_cpu(const bridge_program* call, const bridge_executor* executor);

/* A matrix product c = a b + bias for each index of `dims` leading dimensions: a has m rows and k
 * columns, b k rows and n columns, c m rows and n columns, and bias n columns, the same for all
 * rows. Strides count elements, and may be 0 or negative in operands. If bias has no data there is
 * none.
 *
 * The arithmetic is float64 if any array is, else float32. An element of c is a sum of k products
 * in an order that depends on k alone (docs/numerics.md), plus the bias, rounded once. With
 * skips_zeros, a term whose element of a is 0 is absent, even if its element of b is NaN, and a sum
 * of -0 is 0. c overlaps no operand.
 *
 * With tensor_cores, which CUDA has for a and b of the same 16-bit dtype without skips_zeros, and
 * no array of float64, the sum of a leaf is that of tensor cores: its bits are those of a
 * generation of GPUs, and do not depend on anything else either. */
typedef struct bridge_product_array {
  void* data;
  int32_t dtype; /* bridge_dtype, floating */
  int64_t stride[BRIDGE_MAX_DIMS];
  int64_t row_stride, col_stride;
} bridge_product_array;
typedef struct bridge_product {
  int32_t dims;
  int64_t size[BRIDGE_MAX_DIMS];
  int64_t m, n, k;
  int32_t skips_zeros;  /* 0 or 1 */
  int32_t tensor_cores; /* 0 or 1 */
  bridge_product_array a, b, bias, c;
} bridge_product;
bridge_status bridge_product_cpu(const bridge_product* call, const bridge_executor* executor);

/* The gradient of a table of `rows` rows towards rows that were taken from it by number: row r of
 * the result is the sum of the terms whose id is r, in each of `batches`. An id that is no row is
 * left out. All arrays are compact; the result overlaps none of the others.
 *
 * On the CPU ids[j] is the id of term j, and order is not read. On CUDA ids are sorted, and
 * order[j] is the place of the term of ids[j]; it rises where ids are equal.
 *
 * The terms of a row are added in the order of their places, in the tree of column sums
 * (docs/numerics.md), in float64 if dtype is float64, else in float32, and rounded once. A row
 * without terms is +0. */
typedef struct bridge_embedding_gradient {
  int64_t batches, count, rows, cols;
  int32_t dtype;       /* bridge_dtype, floating: of terms and result */
  int32_t index_dtype; /* BRIDGE_INT32 or BRIDGE_INT64: of ids and order */
  const void* ids;     /* [batches, count] */
  const void* order;   /* [batches, count], from 0 to count - 1; CUDA only */
  const void* terms;   /* [batches, count, cols] */
  void* result;        /* [batches, rows, cols] */
} bridge_embedding_gradient;
bridge_status bridge_embedding_gradient_cpu(const bridge_embedding_gradient* call,
                                            const bridge_executor* executor);

/* CUDA (libbridge_cuda, loaded on demand). `workspace` is device memory of at least
 * bridge_program_cuda_workspace(call) bytes, 16-byte aligned, free for reuse once the stream has
 * passed the call. Whatever device or context is current, the stream's is used, and the thread is
 * left as it was.
 *
 * The workspace holds, for each result of role row, a number of the arithmetic type for every
 * column of each leaf of 16 rows, or, where these or their elements are few, for every element of
 * the space, all of these rounded up to 16 bytes, and once the levels of the tree above: with c
 * chunks of 128 rows in a batch, at most batches * cols * (c + c / 32) such numbers and 256 bytes,
 * and nothing where c is 1. A program with more words than a kernel's parameters take, or more
 * registers than the shared memory of a warp, is an invalid argument. */
size_t bridge_program_cuda_workspace(const bridge_program* call);
bridge_status bridge_program_cuda(const bridge_program* call, void* workspace,
                                  size_t workspace_bytes, void* stream);
/* The same for a matrix product. It runs with less than bridge_product_cuda_workspace(call) bytes
 * too, on fewer multiprocessors: bridge_product_cuda_least_workspace(call) are enough. Both are 0
 * if k is at most 256. */
size_t bridge_product_cuda_workspace(const bridge_product* call);
size_t bridge_product_cuda_least_workspace(const bridge_product* call);
bridge_status bridge_product_cuda(const bridge_product* call, void* workspace,
                                  size_t workspace_bytes, void* stream);
/* The workspace holds 8 bytes for each of rows + 1 numbers in a batch, rounded up to 16 bytes, and
 * then two rows of float32 or float64 numbers for every 128 places of a batch. */
bridge_status bridge_embedding_gradient_cuda(const bridge_embedding_gradient* call, void* workspace,
                                             size_t workspace_bytes, void* stream);
/* Kernels of the program of these words on arrays of these dtypes (operands, then results),
 * compiled for a device that the process uses: an image of code for its driver, and what the
 * kernels expect of a launch (cpp/generated/cuda/call.h). Random arrays are computed by them
 * and by the interpreter first: a bit that differs is BRIDGE_INTERNAL, and they are not used. Calls
 * take them from then on. BRIDGE_UNAVAILABLE if nothing uses the device yet. */
typedef struct bridge_program_kernels {
  const int32_t* code;
  int64_t words;
  const int32_t* dtypes;
  int32_t arrays;
  int32_t free_count;  /* numbers of constants, rising, that are read from a call's words */
  const int32_t* free; /* not NULL, unless there are none */
  int32_t device;
  const void* image;
  int32_t vector;
  int32_t cells;
  int32_t held;
  int32_t kinds;
  int32_t staged;
} bridge_program_kernels;
bridge_status bridge_program_cuda_add(const bridge_program_kernels* kernels);
/* How many launches took such kernels. */
int64_t bridge_program_cuda_added_calls(void);
/* Forgets all of them, for tests; no call may be running. */
void bridge_program_cuda_forget(void);
/* The architecture of a device, as 90; 0 if there is none. */
int32_t bridge_cuda_arch(int32_t device);
const char* bridge_cuda_last_error(void);
/* How many devices answer (0 without a driver), and the architectures compiled in ("80,90,…"). */
int32_t bridge_cuda_device_count(void);
const char* bridge_cuda_archs(void);
/* Loads every kernel onto a device now. CUDA would load each at its first launch, which waits for
 * the device: for ever, if a collective is running on it that waits for a later launch. Legal while
 * a stream is being captured. BRIDGE_UNAVAILABLE if nothing uses the device yet: no context is made
 * on it. */
bridge_status bridge_cuda_preload(int32_t device);

#ifdef __cplusplus
}
#endif
#endif /* BRIDGE_BRIDGE_H_ */
