"""Faults of matrix products and embeddings."""

from __future__ import annotations

from .fault import Fault

_ORDER = "tests/products/test_order.py"
_EMULATED = "tests/products/test_emulated.py"

PRODUCTS = (
    Fault(
        "a leaf of a product ends one term early",
        "cpp/products/call.h",
        "constexpr int64_t kProductLeaf = 256;",
        "constexpr int64_t kProductLeaf = 255;",
        tests=_ORDER,
    ),
    Fault(
        "the chain of a tile starts from 0 in place of -0",
        "cpp/products/tile_sum.h",
        "sums[i][v] = all_of(Real(-0.0));",
        "sums[i][v] = all_of(Real(0.0));",
        tests=f"{_ORDER}::test_signs_of_zeros",
    ),
    Fault(
        "a leaf without a partner is added before the larger subtree's own sum",
        "cpp/products/strips.h",
        "for (; ((leaf >> level) & 1) != 0; ++level)",
        "for (; ((leaf >> level) & 3) == 1; ++level)",
        tests=_ORDER,
    ),
    Fault(
        "a strip of columns ends within a vector",
        "cpp/products/strips.h",
        "return kStripBytes / kVectorBytes / rows * kLanes<Real>;",
        "return kStripBytes / kVectorBytes * kLanes<Real> / rows;",
        tests=f"{_ORDER}::test_few_rows_and_more_columns_than_a_strip",
    ),
    Fault(
        "all rows of a product with a transposed weight have the factors of the first",
        "cpp/products/across.h",
        "fma(all_of(a[(p + t) * kRows + i]), square[t], sums[i])",
        "fma(all_of(a[(p + t) * kRows]), square[t], sums[i])",
        tests=f"{_ORDER}::test_few_rows_and_few_columns",
    ),
    Fault(
        "a leaf with some zeros counts as one of zeros alone",
        "cpp/products/tile_sum.h",
        "zeros == count ? kAllZeros : kSomeZeros",
        "zeros >= count / 2 ? kAllZeros : kSomeZeros",
        tests=f"{_ORDER}::test_leaves_with_zeros",
    ),
    Fault(
        "the rest of a tree loses its first subtree",
        "cpp/products/tile_sum.h",
        "for (++level; (leaf + 1) >> level != 0; ++level)",
        "for (++level; (leaf + 1) >> level > 1; ++level)",
        tests=_ORDER,
    ),
    Fault(
        "a product counts a term with the factor 0",
        "cpp/products/tile_sum.h",
        "if (kSkipsZeros && a[i] == 0) continue;",
        "if (false && a[i] == 0) continue;",
        tests="tests/products/test_public.py::test_zeros_are_absent",
    ),
    Fault(
        "the product of few rows counts a term with the factor 0",
        "cpp/products/strips.h",
        "if (kSkipsZeros && a[i] == 0) continue;",
        "if (false && a[i] == 0) continue;",
        tests="tests/products/test_public.py::test_zeros_are_absent",
    ),
    Fault(
        "a part of a contraction that is no subtree counts as one",
        "bridge/ops/product_splits.py",
        "leaves & -leaves == leaves",
        "leaves > 0",
        tests="tests/jax/test_sharded_products.py::test_values_and_gradients",
        keyword="three",
    ),
    Fault(
        "the sums of all devices are added in a chain",
        "bridge/ops/product_splits.py",
        "    while parts > 2:",
        "    while parts > 4:",
        tests="tests/jax/test_sharded_products.py::test_values_and_gradients",
        keyword="axes",
    ),
    Fault(
        "a gradient of a product counts the absent terms",
        "bridge/ops/product.py",
        "False, params.skips_zeros, params.bits)",
        "False, False, params.bits)",
        tests="tests/products/test_public.py::test_zeros_are_absent_from_gradients",
    ),
    Fault(
        "a bias is left out of a product",
        "cpp/products/product_kernel.cpp",
        "if (region_.bias != nullptr) add_to(from, bias, count);",
        "if (region_.bias != nullptr) add_to(bias, from, count);",
        tests=_ORDER,
    ),
    Fault(
        "tensor cores: a leaf is one step short",
        "cpp/products/tensor_tile.cuh",
        "constexpr int64_t kLeafSteps = kProductLeaf / kTensorStep;",
        "constexpr int64_t kLeafSteps = kProductLeaf / kTensorStep - 1;",
        tests=_EMULATED,
    ),
    Fault(
        "tensor cores: a chain starts again within a leaf",
        "cpp/products/tensor_tile.cuh",
        "        add_step(a, b, shared + stage * kStageRuns, sums);",
        "        Sums own = {};\n"
        "        add_step(a, b, shared + stage * kStageRuns, own);\n"
        "        each([&](int i, int j, int e) { sums[i][j][e] += own[i][j][e]; });",
        tests=_EMULATED,
    ),
    Fault(
        "tensor cores: a step is read before its copies are there",
        "cpp/products/tensor_tile.cuh",
        "simt::wait_for_copies<kStages - 2>();",
        "simt::wait_for_copies<kStages - 1>();",
        tests=_EMULATED,
    ),
    Fault(
        "tensor cores: the terms behind the last are read",
        "cpp/products/tensor_panel.cuh",
        "terms_ > (kHasLanesInRows ? row : 0)",
        "terms_ + row >= 0",
        tests=_EMULATED,
    ),
    Fault(
        "tensor cores: a leaf without a partner counts as zero",
        "cpp/products/product.cuh",
        "if ((leaf >> level & 1) != 0) add(level);",
        "add(level);",
        tests=_EMULATED,
    ),
    Fault(
        "tensor cores: the bias is added after the rounding",
        "cpp/products/tensor_product.cuh",
        "if (bias != nullptr) sum = sum + added;",
        "if (bias != nullptr)\n"
        "            sum = float(math::to_double(math::round_to<math::bfloat16>(sum))) + added;",
        tests=_EMULATED,
    ),
    Fault(
        "a product of 16 bits forgets the word for its bits in its gradient",
        "bridge/ops/product.py",
        "own = ProductParams(dtype, False, not params.transposed_b, bits=bits)",
        "own = ProductParams(dtype, False, not params.transposed_b)",
        tests="tests/products/test_bits.py",
    ),
    Fault(
        "sums with absent terms run on tensor cores",
        "bridge/ops/product.py",
        "return not params.skips_zeros and takes_tensor_cores(",
        "return takes_tensor_cores(",
        tests="tests/products/test_bits.py",
    ),
    Fault(
        "the gradient of a weight repeats the transposition",
        "bridge/ops/product.py",
        "ProductParams(dtype, True, params.transposed_a, bits=params.bits)",
        "ProductParams(dtype, True, not params.transposed_a, bits=params.bits)",
        tests="tests/products/test_products.py::test_values_and_gradients",
    ),
)

_EMBEDDING = "tests/embedding/test_bits.py"

EMBEDDINGS = (
    Fault(
        "the positions of an id are added in decreasing order",
        "cpp/embedding/embedding_kernel.cpp",
        "part.order[i] * call.cols",
        "part.order[begin + end - 1 - i] * call.cols",
        tests=f"{_EMBEDDING}::test_values_and_derivatives",
    ),
    Fault(
        "a leaf of a row's gradient has 15 positions",
        "cpp/tiles/column_stack.h",
        "if (++rows < kLeafRows) return;",
        "if (++rows < kLeafRows - 1) return;",
        tests=f"{_EMBEDDING}::test_values_and_derivatives",
    ),
    Fault(
        "a part of the rows leaves out its first one",
        "cpp/embedding/embedding.cpp",
        "            first_row(batch, row_part),",
        "            first_row(batch, row_part) + (row_part > 0),",
        tests=f"{_EMBEDDING}::test_threads_and_instruction_sets",
    ),
    Fault(
        "an id that is no row wraps",
        "cpp/embedding/embedding.cpp",
        "if (id >= 0 && id < call.rows) use(id, i);",
        "if (id >= -call.rows && id < call.rows) use(id < 0 ? id + call.rows : id, i);",
        tests="tests/embedding/test_transforms.py::test_out_of_range_in_a_trace",
    ),
    Fault(
        "a negative id counts from the end under jit",
        "bridge/jax/_adapter/embeddings.py",
        "index = jnp.where(is_row, ids, 0)",
        "is_row, index = is_row | (ids >= -rows), jnp.where(ids < 0, ids + rows, ids)",
        tests="tests/embedding/test_transforms.py::test_out_of_range_in_a_trace",
    ),
    Fault(
        "an id out of range has a tangent of NaN",
        "bridge/torch/_adapter/embeddings.py",
        "rows_of(x, ids, marks=False)",
        "rows_of(x, ids)",
        tests="tests/embedding/test_transforms.py::test_out_of_range_in_a_trace",
    ),
    Fault(
        "vmap over ids alone reads its results in another order",
        "bridge/torch/_adapter/embeddings.py",
        "moved = ids.movedim(in_dims[1], 1)",
        "moved = ids.movedim(in_dims[1], 1).flip(1)",
        tests="tests/embedding/test_transforms.py::test_vmap",
    ),
)
