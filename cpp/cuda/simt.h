// The block and warp interface that kernels are written against. It has two implementations: the
// CUDA intrinsics, and an emulator that runs the same kernel source on the host (tests/simt).
//
// A kernel is a struct:
//
//   struct Kernel {
//     using Params = ...;                        // trivially copyable, passed by value
//     static constexpr int kThreads = 256;       // largest block, in threads; a multiple of 32
//     static constexpr int kMinBlocks = 2;       // per multiprocessor: bounds the registers
//     static BRIDGE_DEVICE void run(const Params& params);
//   };
//
// simt::launch<Kernel>(grid, dynamic_shared_bytes, stream, params) enqueues it. Both
// implementations define, in namespace bridge::simt:
//
//   kMaxGridX, kMaxGridYZ                        // largest grid extent in x, in y and z
//   kMultiprocessors                             // number for which a launch should have blocks
//   kCachedBytes                                 // bytes that a launch finds again in the L2 cache
//   kRowBytes                                    // the share of each multiprocessor in them
//   kArch                                        // 10 times the compute capability, in a kernel
//   kManyLeaves, kManyElements                   // for column sums: leaves and elements from which
//                                                // a team takes the rows of a leaf in sequence
//   Index block_index(), block_count();          // three-dimensional grid
//   int thread_index();                          // blocks are one-dimensional
//   void sync();                                 // every thread of the block, none may have exited
//   int cluster_rank();                          // of the block, in its cluster
//   void sync_cluster();                         // sync for all blocks of the cluster
//   void arrive_at_cluster(), wait_for_cluster();  // its two halves, each by all threads
//   void store_in_cluster(T* own, int rank, T);  // into another block's dynamic shared memory;
//                                                // that block has begun by the last sync_cluster
//   T shuffle(T value, int lane);                // all 32 lanes of the warp take part
//   T shuffle_xor(T value, int mask);
//   int sum_in_warp(int value);                  // every lane gets it; all 32 take part
//   void sync_warp();                            // no later load moves before it; all 32 lanes of
//                                                // the warp take part
//   uint32_t unknown(uint32_t);                  // the same value, opaque to the compiler
//   int64_t unknown(int64_t);
//   T* found_global(T*), found_shared(T*);       // the same pointer, into that memory; the
//                                                // compiler does not know its origin
//   float chosen(uint32_t bits, float a, float b);  // a if any bit is set, else b
//   void rarely();                               // marks a rare branch in the code
//   T* shared_array<T, count, tag>();            // static shared memory, one array per instance
//   T* dynamic_shared<T>();
//   Word load_word<Word>(const void*);           // 2, 4 or 8 bytes, aligned to their size
//   void store_word(void*, Word);                // likewise
//   Vector16 load16(const void*);                // 16-byte aligned
//   void store16(void*, Vector16);
//   void store16_whole(void*, Vector16);         // to global memory; never split into words
//   const char* launch<Kernel>(Grid, size_t dynamic_shared_bytes, void* stream, const Params&);
//   // The largest cluster in blocks, a power of two up to `most`; 1 on a GPU without clusters.
//   int most_in_cluster<Kernel>(size_t dynamic_shared_bytes, int most);
//   const char* load<Kernel>();                  // loads the code onto the current device
//   const char* make_current(const void* memory, int* entered);
//   void restore_current(int entered);
//
// and, for kernels compiled while the process runs, on the current device:
//
//   int current_device(), current_arch();
//   const char* enter_device(int device, int* entered, bool* is_used);  // enters it only if used
//   const char* load_code(const void* image, void** code);
//   void unload_code(void* code);
//   const char* find_kernel(void* code, const char* name, void** kernel);
//   const char* launch_found(void* kernel, Grid, size_t dynamic_shared_bytes, void* stream,
//                            const void* params);
//   bool allow_shared(void* kernel, size_t bytes);  // dynamic; false if the GPU has fewer
//   // Dynamic shared bytes that a block can use without fewer blocks on a multiprocessor.
//   size_t shared_beside(void* kernel, int threads);  // 0 if unknown
//   int most_in_cluster(void* kernel, int threads, size_t dynamic_shared_bytes, int most);
//   struct BesideCaptures;  // while it lives, a capture elsewhere forbids this thread no calls
//   struct Scratch;  // device memory, and a stream that waits for no other:
//     const char* why;
//     char* take(size_t bytes);  // at a multiple of 16; NULL if there is none
//     const char* copy(void* to, const void* from, size_t bytes);
//     const char* wait();
//     void* stream;
//
// Functions that return a string return NULL on success and a lasting message otherwise.
#ifndef BRIDGE_CUDA_SIMT_H_
#define BRIDGE_CUDA_SIMT_H_

#include <stddef.h>
#include <stdint.h>

namespace bridge::simt {

constexpr int kWarpThreads = 32;

struct Grid {
  int64_t x = 1;
  int64_t y = 1;
  int64_t z = 1;
  int threads = 0;  // per block, a multiple of 32; 0: the kernel's kThreads
  int cluster = 1;  // blocks per cluster, side by side in x; divides x
};

struct Index {
  uint32_t x;
  uint32_t y;
  uint32_t z;
};

struct alignas(16) Vector16 {
  uint32_t words[4];
};

}  // namespace bridge::simt

#ifdef __CUDACC__
#include "cuda/simt_cuda.h"
#else
#include "simt_emulator.h"
#endif

#endif  // BRIDGE_CUDA_SIMT_H_
