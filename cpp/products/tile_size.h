// The size of a tile of a product, for the registers of an instruction set. Include this only in
// files that are compiled once for each instruction set.
#ifndef BRIDGE_PRODUCTS_TILE_SIZE_H_
#define BRIDGE_PRODUCTS_TILE_SIZE_H_

#include "cpu/vectors.h"

namespace bridge {
namespace BRIDGE_ISA_NAMESPACE {
namespace {

#if defined(__AVX512F__)
constexpr int kTileRows = 14, kTileVectors = 2;
#elif defined(__AVX2__)
constexpr int kTileRows = 6, kTileVectors = 2;
#elif defined(__aarch64__)
constexpr int kTileRows = 8, kTileVectors = 3;
#else
constexpr int kTileRows = 4, kTileVectors = 2;
#endif

}  // namespace
}  // namespace BRIDGE_ISA_NAMESPACE
}  // namespace bridge

#endif  // BRIDGE_PRODUCTS_TILE_SIZE_H_
