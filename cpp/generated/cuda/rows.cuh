// The kernels of a program by the row driver (row_driver.cuh): for short rows, for rows in
// registers and for long rows. Include it only in generated files.
#ifndef BRIDGE_GENERATED_CUDA_ROWS_CUH_
#define BRIDGE_GENERATED_CUDA_ROWS_CUH_

#include "generated/cuda/row_driver.cuh"

namespace bridge::interpreter {

template <class P, int kGroup, int kVectors, bool kIsAligned, bool kIsResident>
struct GeneratedKernel {
  using Params = GeneratedParams<P::kArrays, P::kConstants>;
  template <Extent kExtent>
  using DriverOf = RowDriver<P, kGroup, kVectors, kIsAligned, kIsResident, kExtent>;
  static constexpr bool kIsWide = DriverOf<Extent::any>::kIsWide;
  static constexpr int kThreads = kGeneratedThreads;
  static constexpr bool kIsMain = kIsAligned && kGroup == simt::kWarpThreads;  // not for short rows
  static constexpr int kMainBlocks = kIsWide ? 2 : kIsResident ? P::kRowBlocks : P::kLongBlocks;
  static constexpr int kMinBlocks = kIsMain ? kMainBlocks : P::kMinBlocks;

  // Rows of whole chunks, and short rows in which all threads have the same number of vectors, need
  // no bounds checks.
  static constexpr bool kIsShort = kGroup < simt::kWarpThreads;
  static constexpr bool kMayJoin =
      kIsWide || (kIsAligned && !P::kIsLarge && (kIsShort || !P::kIsTight));
  static constexpr Extent kOther = kIsWide ? Extent::alike : Extent::any;
  static constexpr Extent kUsual = kMayJoin && kIsShort      ? Extent::alike
                                   : kMayJoin && kIsResident ? Extent::full
                                                             : Extent::any;

  static BRIDGE_DEVICE void run(const Params& params) {
    if constexpr (kUsual != Extent::any) {
      if (is_usual(params.space)) return run_of<kUsual>(params);
    }
    run_of<kOther>(params);
  }

 private:
  static BRIDGE_DEVICE bool is_usual(const GeneratedSpace& space) {
    constexpr int kAlike = (kIsShort ? 1 : kVectors) * kGroup * P::kVector;
    if (static_cast<uint32_t>(space.cols) % kAlike != 0) return false;
    // The last block of a cluster may have warps without a chunk.
    const int warps = space.threads / simt::kWarpThreads << space.blocks_log2;
    return kIsShort || space.blocks_log2 == 0 || warps == space.warps;
  }

  template <Extent kExtent>
  static BRIDGE_DEVICE void run_of(const Params& params) {
    DriverOf<kExtent>(params).run();
  }
};

// Short rows of the lengths accepted by whole_group(), without bounds checks either.
template <class P>
struct ShortWhole {
  using Params = GeneratedParams<P::kArrays, P::kConstants>;
  static constexpr int kThreads = kGeneratedThreads;
  static constexpr int kMinBlocks = P::kMinBlocks;

  static BRIDGE_DEVICE void run(const Params& params) {
    run_from<kLeastShortGroup * kShortVectors * P::kVector>(params);
  }

 private:
  static constexpr bool kHasSums = P::kColumnSums > 0;
  static constexpr int kMost = kShortGroup * kShortVectors * P::kVector;

  template <int kCols>
  static BRIDGE_DEVICE void run_from(const Params& params) {
    if (kCols == kMost || params.space.cols == kCols) {
      constexpr int kGroup = whole_group(kCols, P::kVector, kHasSums);
      constexpr int kVectors = whole_vectors(kCols, P::kVector, kHasSums);
      return RowDriver<P, kGroup, kVectors, true, P::kIsResident, Extent::full>(params).run();
    }
    if constexpr (kCols < kMost) run_from<2 * kCols>(params);
  }
};

template <class P>
constexpr int kChunkVectors = static_cast<int>(kSumChunk) / (simt::kWarpThreads * P::kVector);

template <class P>
using ShortAligned = GeneratedKernel<P, kShortGroup, kShortVectors, true, P::kIsResident>;
template <class P>
using ShortAny = GeneratedKernel<P, kShortGroup, kShortVectors, false, false>;
template <class P>
using ResidentAligned = GeneratedKernel<P, simt::kWarpThreads, kChunkVectors<P>, true, true>;
template <class P>
using WideAligned =
    GeneratedKernel<P, simt::kWarpThreads, kWideChunks * kChunkVectors<P>, true, true>;
template <class P>
using LongAligned = GeneratedKernel<P, simt::kWarpThreads, kChunkVectors<P>, true, false>;
template <class P>
using LongAny = GeneratedKernel<P, simt::kWarpThreads, kChunkVectors<P>, false, false>;

}  // namespace bridge::interpreter

#ifdef __CUDACC__
#define BRIDGE_GENERATED_KERNEL(name, Kernel)                                        \
  extern "C" __global__ void __launch_bounds__(Kernel::kThreads, Kernel::kMinBlocks) \
      name(const __grid_constant__ Kernel::Params params) {                          \
    Kernel::run(params);                                                             \
  }
#else
// The CUDA emulator finds a kernel by its symbol.
#define BRIDGE_GENERATED_KERNEL(name, Kernel)                                       \
  extern "C" __attribute__((visibility("default"))) void name(const void* params) { \
    Kernel::run(*static_cast<const Kernel::Params*>(params));                       \
  }
#endif

#endif  // BRIDGE_GENERATED_CUDA_ROWS_CUH_
