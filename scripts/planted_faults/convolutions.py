"""Faults of convolutions."""

from __future__ import annotations

from .fault import Fault

_BITS = "tests/convolution/test_bits.py::test_the_bits_are_those_of_matmul"
_ORDERS = "tests/products/test_orders_of_cotangents.py"
_EMULATED = "tests/convolution/test_emulated.py"

CONVOLUTIONS = (
    Fault(
        "a convolution skips the last position of its kernel",
        "cpp/convolution/views.h",
        "all.positions[d] = call.kernel[d];",
        "all.positions[d] = call.kernel[d] > 1 ? call.kernel[d] - 1 : call.kernel[d];",
        tests=_BITS,
    ),
    Fault(
        "the padding of a convolution is absent",
        "cpp/convolution/views.h",
        "all.start[d] = -call.padding[d];",
        "all.start[d] = 0;",
        tests=_BITS,
    ),
    Fault(
        "channels are slower than positions in the sum of a convolution",
        "cpp/convolution/views.h",
        "return {{size[0], size[1], size[2], last}, "
        "{stride[0], stride[1], stride[2], last_stride}};",
        "return {{last, size[0], size[1], size[2]}, "
        "{last_stride, stride[0], stride[1], stride[2]}};",
        tests=_BITS,
    ),
    Fault(
        "the last place of a row counts as outside of the array",
        "cpp/convolution/patches.h",
        "(size - coordinate + step - 1) / step : 0;",
        "(size - coordinate - 1 + step - 1) / step : 0;",
        tests=_BITS,
    ),
    Fault(
        "a panel of a deep convolution ends one term early",
        "cpp/convolution/convolution_kernel.cpp",
        "const int64_t terms = smaller(all - first, kDeep);",
        "const int64_t terms = smaller(all - first, kDeep - 1);",
        tests=_BITS,
        keyword="many or deep",
    ),
    Fault(
        "a line of a depthwise plane begins one place late",
        "cpp/convolution/planes.h",
        "vectors.from[count] = line + x;",
        "vectors.from[count] = line + x + 1;",
        tests="tests/convolution/test_bits.py",
        keyword="depthwise",
    ),
    Fault(
        "the last tap of a map between places is left out",
        "cpp/taps/taps_kernel.cpp",
        "for (; tap < call_.taps; ++tap) {",
        "for (; tap < call_.taps - 1; ++tap) {",
        tests="tests/vision/test_maps.py",
        keyword="sums",
    ),
    Fault(
        "the last tap along lanes is left out",
        "cpp/taps/lanes.h",
        "for (int64_t tap = 0; tap < call.taps; ++tap) {",
        "for (int64_t tap = 0; tap < call.taps - 1; ++tap) {",
        tests="tests/vision/test_maps.py",
        keyword="sums",
    ),
    Fault(
        "the mean of a row adds its second quarter twice",
        "cpp/taps/row_mean.h",
        "(at(i + 2 * q, v) + at(i + 3 * q, v))",
        "(at(i + 2 * q, v) + at(i + q, v))",
        tests="tests/vision/test_maps.py",
        keyword="mean",
    ),
    Fault(
        "a copy of images begins one place late",
        "cpp/convolution/padded.h",
        "from[(i - low[2]) * call.x.stride[2]",
        "from[(i - low[2] / 2) * call.x.stride[2]",
        tests=_BITS,
    ),
    Fault(
        "images of a product all read the first image",
        "cpp/convolution/as_product.h",
        "all.a.stride[0] = lanes.stride[last - 1];",
        "all.a.stride[0] = 0;",
        tests=_BITS,
    ),
    Fault(
        "a leaf of a depthwise convolution ends one term early",
        "cpp/convolution/channelwise.h",
        "const int64_t terms = smaller(all - first, kProductLeaf);",
        "const int64_t terms = smaller(all - first, kProductLeaf - 1);",
        tests="tests/convolution/test_bits.py",
        keyword="depthwise",
    ),
    Fault(
        "a place of the gradient towards an image takes the positions of its neighbour",
        "cpp/convolution/views.h",
        "const int64_t rest = number % classes, from = rest + call.padding[d];",
        "const int64_t rest = number % classes, from = rest + 1 + call.padding[d];",
        tests=_BITS,
    ),
    Fault(
        "CUDA: a group of a convolution reads the weights of the first",
        "cpp/convolution/tile.cuh",
        "PanelB b(problem.b, group * params.steps.b,",
        "PanelB b(problem.b, 0 * params.steps.b,",
        tests=_EMULATED,
    ),
    Fault(
        "CUDA: a place before the array is read",
        "cpp/convolution/tile.cuh",
        "is_inside = is_inside && place >= 0 && place < static_cast<Int>(view.size[d]);",
        "is_inside = is_inside && place >= -1 && place < static_cast<Int>(view.size[d]);",
        tests=_EMULATED,
    ),
    Fault(
        "CUDA: a step of a convolution on tensor cores forgets to carry into the next position",
        "cpp/convolution/tensor_tile.cuh",
        "at_.at[d] += step_.at[d] + carry;",
        "at_.at[d] += step_.at[d];",
        tests=_EMULATED,
    ),
    Fault(
        "CUDA: a convolution on tensor cores reads the terms behind the last",
        "cpp/convolution/tensor_tile.cuh",
        "rest_of_terms_ > (kHasLanesInRows ? row : 0) && is_inside(lane, term);",
        "rest_of_terms_ > (kHasLanesInRows ? row : 0) - 64 && is_inside(lane, term);",
        tests=_EMULATED,
    ),
    Fault(
        "convolution: torch adds three cotangents of g in an order of its own",
        "bridge/torch/_adapter/convolutions.py",
        "PRIMITIVES.apart(g) if meets else g",
        "g",
        tests=f"{_ORDERS}::test_convolution_with_a_bias",
    ),
    Fault(
        "linear: torch adds three cotangents of g in an order of its own",
        "bridge/torch/_adapter/products.py",
        "PRIMITIVES.apart(g) if needs_a and needs_b and needs_bias else g",
        "g",
        tests=f"{_ORDERS}::test_linear_with_a_bias",
    ),
)
