// Products of two operands of float16, or of bfloat16, on tensor cores.
#ifndef BRIDGE_PRODUCTS_TENSOR_PRODUCT_CUH_
#define BRIDGE_PRODUCTS_TENSOR_PRODUCT_CUH_

#include "products/tensor_tile.cuh"

namespace bridge::products {

template <class Element, Runs kRunsA, Runs kRunsB, int kWarpRows, int kWarpCols, int kRows,
          int kCols, int kThreads = kWarpRows * kWarpCols * simt::kWarpThreads>
struct TensorKernel : TensorTile<Element, TensorPanel<true, kRunsA, kWarpRows, kRows, kThreads>,
                                 TensorPanel<false, kRunsB, kWarpCols, kCols, kThreads>, kWarpRows,
                                 kWarpCols, kRows, kCols> {
  using Params = TileParams;
  using Tile = typename TensorKernel::TensorTile;
  using typename Tile::PanelA;
  using typename Tile::PanelB;
  using typename Tile::Sums;

  static BRIDGE_DEVICE void run(const Params& params) {
    each_tile<Tile>(params, [&](int64_t batch, int64_t row, int64_t col) {
      compute_tile(params, batch, row, col);
    });
  }

 private:
  static BRIDGE_DEVICE void compute_tile(const Params& params, int64_t batch, int64_t row,
                                         int64_t col) {
    const bridge_product& call = params.call;
    const auto data_of = [&](const bridge_product_array& array, int64_t r, int64_t c) {
      return static_cast<char*>(array.data) + offset_of(call, array, batch) +
             (r * array.row_stride + c * array.col_stride) * element_bytes(array.dtype);
    };
    PanelA a(data_of(call.a, row, 0), call.m - row, call.k, call.a.row_stride, call.a.col_stride,
             Tile::warp_row());
    PanelB b(data_of(call.b, 0, col), call.n - col, call.k, call.b.col_stride, call.b.row_stride,
             Tile::warp_col());
    Sums sums;
    Tile::add_all(params, call.k, a, b, sums);
    write(call, data_of(call.c, row, col),
          call.bias.data == nullptr ? nullptr : data_of(call.bias, 0, col), call.m - row,
          call.n - col, sums);
    simt::sync();  // the next tile writes the stages
  }

  static BRIDGE_DEVICE void write(const bridge_product& call, char* c, const char* bias,
                                  int64_t rows, int64_t cols, const Sums& sums) {
    const int64_t bytes = element_bytes(call.c.dtype), bias_bytes = element_bytes(call.bias.dtype);
#pragma unroll
    for (int j = 0; j < Tile::kColMmas; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int col = Tile::col_of(j, e);
        if (col >= cols) continue;
        float added = 0;
        if (bias != nullptr)
          added =
              load_element<float>(bias + col * call.bias.col_stride * bias_bytes, call.bias.dtype);
#pragma unroll
        for (int i = 0; i < Tile::kRowMmas * 2; ++i) {
          const int row = Tile::row_of(i);
          if (row >= rows) continue;
          float sum = sums[i / 2][j][i % 2 * 2 + e];
          if (bias != nullptr) sum = sum + added;
          store_element(c + (row * call.c.row_stride + col * call.c.col_stride) * bytes,
                        call.c.dtype, sum);
        }
      }
    }
  }
};

}  // namespace bridge::products

#endif  // BRIDGE_PRODUCTS_TENSOR_PRODUCT_CUH_
