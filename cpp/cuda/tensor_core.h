// The part of the block and warp interface (simt.h) that feeds tensor cores. It has two
// implementations as well: PTX, and the emulator's model of tensor cores (tests/simt). A matrix
// here has elements of 16 bits; all 32 lanes of a warp take part.
//
// load_matrices<kTransposed>(row, words) loads four matrices of 8 x 8 from shared memory. Lane l
// names row l % 8 of matrix l / 8, at a multiple of 16 bytes. It gets the elements 2 * (l % 4) and
// the next one of row l / 4 of each matrix, or, if they are transposed, of column l / 4.
//
// multiply_add<Element>(a, b, c) computes c += a b, where a is 16 x 16, b 16 x 8 and c 16 x 8. A
// lane holds its elements of the four quarters of a: of rows 0 to 7 and columns 0 to 7, of the rows
// below, then of the columns beside both. Of b it holds those of the upper and of the lower half,
// transposed; of c the elements 2 * (l % 4) and the next one of row l / 4, then of the row 8 below.
//
// begin_copy16(shared, global, has_data) begins to copy 16 bytes to shared memory, or to write
// zeros there. end_of_copies() ends a group of copies, which may be empty.
// wait_for_copies<kGroups>() waits for those of the thread, but for its last kGroups groups.
#ifndef BRIDGE_CUDA_TENSOR_CORE_H_
#define BRIDGE_CUDA_TENSOR_CORE_H_

#include <stdint.h>

#include <type_traits>

#include "cuda/simt.h"
#include "math/convert.h"

#ifdef __CUDACC__
namespace bridge::simt {

template <bool kTransposed>
BRIDGE_DEVICE void load_matrices(const void* row, uint32_t (&words)[4]) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(address)
                 : "memory");
  }
}

template <class Element>
BRIDGE_DEVICE void multiply_add(const uint32_t (&a)[4], const uint32_t (&b)[2], float (&c)[4]) {
  if constexpr (std::is_same_v<Element, math::float16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    static_assert(std::is_same_v<Element, math::bfloat16>);
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

BRIDGE_DEVICE void begin_copy16(void* shared, const void* global, bool has_data) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to),
               "l"(__cvta_generic_to_global(global)), "r"(has_data ? 16 : 0)
               : "memory");
}

BRIDGE_DEVICE void end_of_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int kGroups>
BRIDGE_DEVICE void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

}  // namespace bridge::simt
#else
#include "tensor_core_emulator.h"
#endif

#endif  // BRIDGE_CUDA_TENSOR_CORE_H_
