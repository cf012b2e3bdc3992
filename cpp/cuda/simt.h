// The block and warp interface that kernels are written against. It has two implementations: the
// CUDA intrinsics, and an emulator that runs the same kernel source on the host (tests/simt).
//
// A kernel is a struct:
//
//   struct Kernel {
//     using Params = ...;                        // trivially copyable, passed by value
//     static constexpr int kThreads = 256;       // block size (at most), a multiple of 32
//     static constexpr int kMinBlocks = 2;       // per multiprocessor: bounds the registers
//     static BRIDGE_DEVICE void run(const Params& params);
//   };
//
// and is enqueued by simt::launch<Kernel>(grid, dynamic_shared_bytes, stream, params). Both
// implementations define, in namespace bridge::simt:
//
//   kMaxGridX, kMaxGridYZ                        // largest grid extent in x, in y and z
//   kMultiprocessors                             // that a launch should have blocks for
//   kCachedBytes                                 // a launch finds so many again in the L2 cache
//   kRowBytes                                    // and of each row that all multiprocessors have
//   kArch                                        // 10 times the compute capability, in a kernel
//   kManyLanes, kManyElements                    // of rows with column sums: enough for teams that
//                                                // take several rows one behind the other
//   Index block_index(), block_count();          // three-dimensional grid
//   int thread_index();                          // blocks are one-dimensional
//   void sync();                                 // every thread of the block, none may have exited
//   int cluster_rank();                          // of the block, in its cluster
//   void sync_cluster();                         // as sync, of all blocks of the cluster
//   void arrive_at_cluster(), wait_for_cluster();  // the two halves of that, each by all threads
//   void store_in_cluster(T* own, int rank, T);  // in another block's dynamic shared memory, which
//                                                // has begun by the last sync_cluster
//   T shuffle(T value, int lane);                // all 32 lanes of the warp take part
//   T shuffle_xor(T value, int mask);
//   int sum_in_warp(int value);                  // every lane gets it; all 32 take part
//   void sync_warp();                            // no load that stands behind goes before; all 32
//                                                // lanes of the warp take part
//   uint32_t unknown(uint32_t);                  // the same, of which a compiler knows nothing
//   int64_t unknown(int64_t);
//   T* found_global(T*), found_shared(T*);       // the same pointer, into that memory, of which a
//                                                // compiler does not know how it was found
//   float chosen(uint32_t bits, float a, float b);  // a where any bit is set, else b
//   void rarely();                               // marks a branch that is seldom taken in the code
//   T* shared_array<T, count, tag>();            // static shared memory, one array per instance
//   T* dynamic_shared<T>();
//   Word load_word<Word>(const void*);           // of 2, 4 or 8 bytes, as many aligned
//   void store_word(void*, Word);                // the same
//   Vector16 load16(const void*);                // 16-byte aligned
//   void store16(void*, Vector16);
//   void store16_whole(void*, Vector16);         // of what is global: never cut into words
//   const char* launch<Kernel>(Grid, size_t dynamic_shared_bytes, void* stream, const Params&);
//   // A power of two, `most` at most: so many blocks may be a cluster. 1 where there are none.
//   int most_in_cluster<Kernel>(size_t dynamic_shared_bytes, int most);
//   const char* load<Kernel>();                  // brings the code onto the current device
//   const char* make_current(const void* memory, int* entered);
//   void restore_current(int entered);
//
// and, for kernels that were compiled while the process runs, on the current device:
//
//   int current_device(), current_arch();
//   const char* enter_device(int device, int* entered, bool* is_used);  // entered only if it is
//   const char* load_code(const void* image, void** code);
//   void unload_code(void* code);
//   const char* find_kernel(void* code, const char* name, void** kernel);
//   const char* launch_found(void* kernel, Grid, size_t dynamic_shared_bytes, void* stream,
//                            const void* params);
//   bool allow_shared(void* kernel, size_t bytes);  // dynamic ones; false where there are fewer
//   // Dynamic ones of a block where no fewer blocks have room on a multiprocessor than without.
//   size_t shared_beside(void* kernel, int threads);  // 0 where nobody knows
//   int most_in_cluster(void* kernel, int threads, size_t dynamic_shared_bytes, int most);
//   struct BesideCaptures;  // while it lives: the thread means no stream that another captures
//   struct Scratch;  // device memory and a stream, on which the thread waits for no other:
//     const char* why;
//     char* take(size_t bytes);  // at a multiple of 16; NULL where there is none
//     const char* copy(void* to, const void* from, size_t bytes);
//     const char* wait();
//     void* stream;
//
// The functions that return a string return NULL on success and a lasting message otherwise.
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
  int threads = 0;  // of a block, a multiple of 32; 0: as many as the kernel's kThreads
  int cluster = 1;  // blocks of one, side by side in x, of which there is a multiple
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
