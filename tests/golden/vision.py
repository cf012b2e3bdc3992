"""Cases of convolutions, pools, batch norm and interpolation, with the channels first."""

from __future__ import annotations

from typing import Any

from tests.golden.model import Finite, Special

Shape = tuple[int, ...]


def _beside_channels(ops: Any) -> dict[str, int]:
    """Returns the argument by which JAX finds the channels."""
    return {} if hasattr(ops, "conv2d") else {"axis": 1}


def _conv(
    name: str,
    x: Shape,
    w: Shape,
    places: Shape,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
    groups: int = 1,
) -> Finite:
    dims = len(places)

    def call(ops: Any, x: Any, w: Any) -> Any:
        if hasattr(ops, "conv2d"):
            function = getattr(ops, f"conv{dims}d")
            return function(x, w, None, stride, padding, dilation, groups)
        return ops.conv_general_dilated(
            x,
            w,
            [stride] * dims,
            [(padding, padding)] * dims,
            rhs_dilation=[dilation] * dims,
            feature_group_count=groups,
        )

    return Finite(f"conv{name}", call, (x, w), (x[0], w[0], *places), mixes=False)


CONVOLUTIONS = (
    _conv("", (2, 3, 5, 6), (4, 3, 3, 3), (5, 6), padding=1),
    _conv(" 1x1", (2, 5, 4, 3), (18, 5, 1, 1), (4, 3)),
    _conv(" 1x1 of many leaves", (1, 300, 3, 3), (5, 300, 1, 1), (3, 3)),
    _conv(" 1x1 of a stride", (2, 5, 5, 4), (3, 5, 1, 1), (3, 2), 2),
    _conv(" of a stride", (1, 3, 9, 8), (17, 3, 7, 7), (5, 4), 2, 3),
    _conv(" dilated", (1, 2, 7), (3, 2, 3), (3,), padding=1, stride=2, dilation=2),
    _conv(" of groups", (2, 6, 4, 4), (4, 3, 2, 2), (3, 3), groups=2),
    _conv(" depthwise", (2, 19, 8, 9), (19, 1, 7, 7), (8, 9), padding=3, groups=19),
    _conv(" depthwise of a stride", (1, 33, 6, 5), (33, 1, 3, 3), (3, 3), 2, 1, groups=33),
    _conv(" depthwise of many places", (3, 2, 20, 20), (2, 1, 3, 3), (20, 20), 1, 1, groups=2),
    _conv(" of three dimensions", (1, 2, 3, 4, 3), (2, 2, 2, 2, 2), (2, 3, 2)),
)


def _pool(name: str, x: Shape, places: Shape, kind: Any, **options: Any) -> Finite:
    function = name.split()[0]

    def call(ops: Any, x: Any) -> Any:
        return getattr(ops, function)(x, **options, **_beside_channels(ops))

    return kind(name, call, (x,), (*x[:2], *places))  # type: ignore[no-any-return]


_STEM: dict[str, Any] = {"kernel_size": 3, "stride": 2, "padding": 1}
_OVERLAPPING: dict[str, Any] = {"kernel_size": 3, "stride": 1, "padding": 1}
_UNEVEN: dict[str, Any] = {"kernel_size": (2, 3), "stride": (2, 1), "ceil_mode": True}

POOLS = (
    _pool("max_pool", (2, 3, 7, 8), (4, 4), Finite, **_STEM),
    _pool("max_pool of special numbers", (2, 17, 7, 8), (4, 4), Special, **_STEM),
    _pool("max_pool overlapping", (2, 3, 5, 4), (5, 4), Special, **_OVERLAPPING),
    _pool("max_pool dilated", (1, 3, 9), (5,), Special, kernel_size=3, stride=1, dilation=2),
    _pool("max_pool uneven", (2, 2, 5, 6), (3, 4), Finite, **_UNEVEN),
    _pool("max_pool of many taps", (1, 2, 9, 9), (1, 1), Finite, kernel_size=9, stride=1),
    _pool("avg_pool", (2, 3, 7, 8), (4, 4), Finite, **_STEM),
    _pool("avg_pool overlapping", (2, 17, 5, 4), (5, 4), Special, **_OVERLAPPING),
    _pool(
        "avg_pool without padding",
        (2, 3, 6, 5),
        (6, 5),
        Finite,
        **_OVERLAPPING,
        count_include_pad=False,
    ),
    _pool("avg_pool uneven", (2, 2, 5, 6), (3, 4), Finite, **_UNEVEN, divisor_override=7),
    _pool("avg_pool of many taps", (1, 2, 9, 9), (1, 1), Finite, kernel_size=9, stride=1),
    _pool("avg_pool of volumes", (1, 2, 4, 4, 3), (2, 2, 1), Finite, kernel_size=2),
    _pool("adaptive_avg_pool to one place", (2, 3, 7, 5), (1, 1), Finite, output_size=1),
    _pool("adaptive_avg_pool", (2, 3, 7, 5), (3, 2), Special, output_size=(3, 2)),
)


def _resized(name: str, x: Shape, places: Shape, kind: Any = Finite, **options: Any) -> Finite:
    return _pool(f"interpolate {name}", x, places, kind, size=places, **options)


INTERPOLATIONS = (
    _resized("nearest", (2, 3, 4, 5), (7, 3), Special, mode="nearest"),
    _resized("nearest-exact", (2, 3, 4, 5), (8, 10), mode="nearest-exact"),
    _resized("linear", (2, 3, 9), (5,), mode="linear"),
    _resized("bilinear", (2, 3, 4, 5), (8, 10), mode="bilinear"),
    _resized("bilinear at corners", (2, 17, 4, 5), (7, 3), mode="bilinear", align_corners=True),
    _resized("bilinear antialiased", (1, 2, 9, 13), (3, 2), mode="bilinear", antialias=True),
    _resized("bicubic", (1, 3, 4, 5), (7, 11), Special, mode="bicubic"),
    _resized("bicubic antialiased", (1, 2, 9, 13), (3, 5), mode="bicubic", antialias=True),
    _resized("trilinear", (1, 2, 3, 2, 4), (5, 4, 3), mode="trilinear"),
    _resized("area", (1, 3, 7, 5), (3, 2), mode="area"),
)


def _normalised(name: str, x: Shape, *, training: bool = True) -> Finite:
    vectors = (x[1:2],) * (2 if training else 4)

    def call(ops: Any, x: Any, *vectors: Any) -> Any:
        options = {"training": training, "eps": 1e-3, **_beside_channels(ops)}
        if training:
            y = ops.batch_norm(x, None, None, *vectors, **options)
            return y[0] if isinstance(y, tuple) else y
        mean, variance, *others = vectors
        return ops.batch_norm(x, mean, variance * variance, *others, **options)

    return Finite(f"batch_norm{name}", call, (x, *vectors), x, mixes=False)


NORMS = (
    _normalised("", (5, 3)),
    _normalised("", (2, 3, 4, 5)),
    _normalised("", (3, 17, 9)),
    _normalised("", (4, 2, 17, 16)),
    _normalised(" of given statistics", (2, 3, 4, 5), training=False),
)

VISION = (*CONVOLUTIONS, *POOLS, *INTERPOLATIONS, *NORMS)
