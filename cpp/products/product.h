// Matrix products: the rows and columns of a call that one task computes, and the kernels for it.
// The order of every sum is that of docs/numerics.md: a chain of fused multiply-adds in each leaf
// of kProductLeaf terms, and a binary tree over the leaves that is aligned at powers of two.
#ifndef BRIDGE_PRODUCTS_PRODUCT_H_
#define BRIDGE_PRODUCTS_PRODUCT_H_

#include <bridge/bridge.h>
#include <stddef.h>

#include "cpu/isa.h"
#include "products/call.h"

namespace bridge::products {

// The terms of packed panels: a power of two of leaves. Sums of deeper products wait in memory.
constexpr int64_t kDeepLeaves = 4, kDeep = kDeepLeaves * kProductLeaf;

// A part of the result of one batch. The pointers are to the first elements of its rows and
// columns.
struct Region {
  const bridge_product* call;
  const char* a;
  const char* b;
  const char* bias;  // null if there is none
  char* c;
  int64_t rows, cols;
};

struct ProductKernels {
  int64_t tile_rows, tile_cols;
  // Returns the scratch memory (bytes) of a region, with room to align it to 64 bytes.
  size_t (*scratch_bytes)(const bridge_product& call, int64_t rows, int64_t cols);
  void (*run)(const Region& region, void* scratch);
};

struct ProductTable {
  ProductKernels of[2];  // float, double
};

}  // namespace bridge::products

namespace bridge {
using ProductTables = products::ProductTable;
BRIDGE_DECLARE_PER_ISA(ProductTables, product_tables)
}  // namespace bridge

#endif  // BRIDGE_PRODUCTS_PRODUCT_H_
