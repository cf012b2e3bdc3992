"""Wrong arguments of public functions: each message names the argument and its value."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import bridge.jax as bj
from bridge.jax.nnx import BiasDropoutAdd, BiasGELU, FusedScaleMaskSoftmax

FLOATS = "one of float16, bfloat16, float32, float64"
FORMS = "one of 'tanh', 'none', 'sigmoid'"
KINDS = (
    "one of 'padding', 'causal', 'no_mask', 'padding_causal', 'arbitrary', 'causal_bottom_right'"
)
NAME = "the name of a mesh axis, or several names; the dimension of x is `axis`"
STREAM = "nnx.Rngs or nnx.RngStream"
WINDOW = "a pair of integers from -1 on"
X = np.ones((4, 8), np.float32)
FOREIGN = X.astype(">f4")
MASK = np.zeros((4, 8), bool)


def traced(function: Callable[[Any], Any], value: Any) -> Any:
    return jax.jit(function)(value)


def rngs() -> nnx.Rngs:
    return nnx.Rngs(0)


# A call, its error, and its message. JAX's arrays are made inside the call, because the import of a
# test must not start JAX.
REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    # Traced numbers; tests/test_numbers.py has others.
    (
        lambda: traced(lambda p: bj.bias_dropout_add(X, p=p, seed=1), np.ones(3)),
        TypeError,
        "bias_dropout_add: p is traced, expected a number known when the function is compiled: "
        "name it in static_argnames of jax.jit, or take it from outside the function",
    ),
    (
        lambda: traced(lambda s: bj.scaled_causal_softmax(X, s), np.ones(3)),
        TypeError,
        "scaled_causal_softmax: scale is traced, expected a number known when the function is "
        "compiled: name it in static_argnames of jax.jit, or take it from outside the function",
    ),
    *(
        (
            lambda call=call: traced(lambda flag: call(interleaved=flag), True),
            TypeError,
            f"{name}: interleaved is traced, expected True or False known when the function is "
            "compiled: name it in static_argnames of jax.jit, or take it from outside the function",
        )
        for name, call in (
            ("swiglu", lambda **flag: bj.swiglu(X, **flag)),
            ("rotary", lambda **flag: bj.rotary(X, X, X, **flag)),
            ("rms_norm_rotary", lambda **flag: bj.rms_norm_rotary(X, X, X, X, **flag)),
        )
    ),
    # Arguments that are no arrays, or arrays of another byte order.
    (
        lambda: bj.linear_cross_entropy(X, None, np.zeros(4, np.int32)),
        TypeError,
        "linear_cross_entropy: weight has type NoneType, expected an array",
    ),
    *(
        (
            lambda call=call: call(),
            TypeError,
            f"{name} has dtype {dtype}, expected the byte order of this machine: "
            f"convert it with astype('{native}')",
        )
        for name, dtype, native, call in (
            ("rms_norm: x", ">f4", "float32", lambda: bj.rms_norm(FOREIGN)),
            ("scaled_softmax: x", ">f4", "float32", lambda: bj.scaled_softmax(FOREIGN)),
            (
                "cross_entropy: labels",
                ">i4",
                "int32",
                lambda: bj.cross_entropy(X, np.zeros(4, ">i4")),
            ),
        )
    ),
    (
        lambda: bj.make_viewless(FOREIGN),
        TypeError,
        "make_viewless: x has dtype >f4, expected an array of a dtype that JAX has",
    ),
    # Seeds.
    (
        lambda: bj.bias_dropout_add(X, seed=jnp.ones(2)),
        TypeError,
        "bias_dropout_add: seed has dtype float32, expected an integer dtype",
    ),
    (
        lambda: bj.bias_dropout_add(X, seed=np.asarray(1.5)),
        TypeError,
        "bias_dropout_add: seed has dtype float64, expected an integer dtype",
    ),
    (
        lambda: traced(lambda seed: bj.bias_dropout_add(X, seed=seed), 1.5),
        TypeError,
        "bias_dropout_add: seed has dtype float32, expected an integer dtype",
    ),
    # Flags.
    (
        lambda: bj.bias_dropout_add(X, seed=1, training="no"),
        TypeError,
        "bias_dropout_add: training is 'no', expected True or False",
    ),
    (
        lambda: bj.bias_dropout_add(X, seed=1, training=np.ones(2)),
        TypeError,
        "bias_dropout_add: training is array([1., 1.]), expected True or False",
    ),
    (
        lambda: traced(lambda t: bj.bias_dropout_add(X, seed=1, training=t), True),
        TypeError,
        "bias_dropout_add: training is traced, expected True or False known when the function is "
        "compiled: name it in static_argnames of jax.jit, or take it from outside the function",
    ),
    # The form of GELU.
    (
        lambda: bj.bias_gelu(X, approximate=None),
        ValueError,
        f"bias_gelu: approximate is None, expected {FORMS}",
    ),
    (
        lambda: bj.bias_gelu(X, approximate=np.ones(2)),
        ValueError,
        f"bias_gelu: approximate is array([1., 1.]), expected {FORMS}",
    ),
    # all_gather.
    *(
        (
            lambda name=name: bj.all_gather(X, name),
            TypeError,
            f"all_gather: axis_name has type {kind}, expected {NAME}",
        )
        for name, kind in ((3, "int"), (None, "NoneType"), (X, "ndarray"), (("data", {}), "dict"))
    ),
    *(
        (
            lambda x=x: bj.all_gather(x, "data"),
            TypeError,
            f"all_gather: x has type {kind}, expected an array of a dtype that JAX has",
        )
        for x, kind in (("x", "str"), (None, "NoneType"))
    ),
    (
        lambda: bj.all_gather(X, "data", tiled="yes"),
        TypeError,
        "all_gather: tiled is 'yes', expected True or False",
    ),
    (
        lambda: bj.all_gather(X, "data", check=1),
        TypeError,
        "all_gather: check is 1, expected True or False",
    ),
    # make_viewless.
    *(
        (
            lambda x=x: bj.make_viewless(x),
            TypeError,
            f"make_viewless: x has {found}, expected an array of a dtype that JAX has",
        )
        for x, found in (
            ("a", "type str"),
            (None, "type NoneType"),
            (np.asarray([object()]), "dtype object"),
        )
    ),
    # BiasGELU.
    *(
        (
            lambda features=features: BiasGELU(features, rngs=rngs()),
            error,
            f"BiasGELU: features {found}, expected an integer from 0 on",
        )
        for features, error, found in (
            (None, TypeError, "has type NoneType"),
            (8.0, TypeError, "has type float"),
            (np.ones(2), TypeError, "is array([1., 1.])"),
            (-1, ValueError, "is -1"),
        )
    ),
    (
        lambda: BiasGELU(8, approximate="erf", rngs=rngs()),
        ValueError,
        f"BiasGELU: approximate is 'erf', expected {FORMS}",
    ),
    (
        lambda: BiasGELU(8, use_bias=None, rngs=rngs()),
        TypeError,
        "BiasGELU: use_bias is None, expected True or False",
    ),
    *(
        (
            lambda name=name, dtype=dtype: BiasGELU(8, **{name: dtype}, rngs=rngs()),
            TypeError,
            f"BiasGELU: {name} is {dtype!r}, expected {FLOATS}",
        )
        for name, dtype in (("dtype", "floaty"), ("param_dtype", None), ("param_dtype", "int32"))
    ),
    (
        lambda: BiasGELU(8, bias_init=0.0, rngs=rngs()),
        TypeError,
        "BiasGELU: bias_init has type float, expected a function of a key, a shape and a dtype",
    ),
    (
        lambda: BiasGELU(8, bias_init=lambda *_: jnp.ones(3), rngs=rngs()),
        ValueError,
        "BiasGELU: bias_init gave shape [3], expected [8]",
    ),
    (
        lambda: BiasGELU(8, rngs=None),
        TypeError,
        f"BiasGELU: rngs has type NoneType, expected {STREAM}",
    ),
    (
        lambda: BiasGELU(8, rngs=nnx.Rngs(dropout=0)),
        ValueError,
        "BiasGELU: rngs has no stream 'params' and no default, expected one of them",
    ),
    (
        lambda: BiasGELU(8, dtype=jnp.float32, rngs=rngs())("x"),
        TypeError,
        "BiasGELU: x has type str, expected an array of a dtype that JAX has",
    ),
    # BiasDropoutAdd.
    (
        lambda: BiasDropoutAdd(None),
        TypeError,
        "BiasDropoutAdd: rate has type NoneType, expected a number",
    ),
    (
        lambda: BiasDropoutAdd(np.ones(2)),
        TypeError,
        "BiasDropoutAdd: rate has shape [2], expected a number",
    ),
    (
        lambda: BiasDropoutAdd(1.5),
        ValueError,
        "BiasDropoutAdd: rate is 1.5, expected a probability, from 0 to 1",
    ),
    (
        lambda: BiasDropoutAdd(0.1, deterministic="no"),
        TypeError,
        "BiasDropoutAdd: deterministic is 'no', expected True or False",
    ),
    (
        lambda: BiasDropoutAdd(0.1, rng_collection=3),
        TypeError,
        "BiasDropoutAdd: rng_collection has type int, expected the name of a stream",
    ),
    (
        lambda: BiasDropoutAdd(0.1, rngs=3),
        TypeError,
        f"BiasDropoutAdd: rngs has type int, expected {STREAM}",
    ),
    (
        lambda: BiasDropoutAdd(0.1, rngs=nnx.Rngs(params=0)),
        ValueError,
        "BiasDropoutAdd: rngs has no stream 'dropout' and no default, expected one of them",
    ),
    (
        lambda: BiasDropoutAdd(0.1)(X, rngs="key"),
        TypeError,
        f"BiasDropoutAdd: rngs has type str, expected {STREAM}",
    ),
    (
        lambda: BiasDropoutAdd(0.1, rngs=rngs())(X, deterministic=np.ones(2)),
        TypeError,
        "BiasDropoutAdd: deterministic is array([1., 1.]), expected True or False",
    ),
    # FusedScaleMaskSoftmax.
    (
        lambda: FusedScaleMaskSoftmax(np.ones(2)),
        ValueError,
        f"FusedScaleMaskSoftmax: attn_mask_type is array([1., 1.]), expected {KINDS}",
    ),
    (
        lambda: FusedScaleMaskSoftmax(SimpleNamespace(name=[])),
        ValueError,
        f"FusedScaleMaskSoftmax: attn_mask_type is namespace(name=[]), expected {KINDS}",
    ),
    (
        lambda: FusedScaleMaskSoftmax(scale=np.ones(2)),
        TypeError,
        "FusedScaleMaskSoftmax: scale has shape [2], expected a real number",
    ),
    (
        lambda: FusedScaleMaskSoftmax(scale=float("inf")),
        ValueError,
        "FusedScaleMaskSoftmax: scale is inf, expected a finite number",
    ),
    (
        lambda: FusedScaleMaskSoftmax(window_size=3),
        ValueError,
        f"FusedScaleMaskSoftmax: window_size is 3, expected {WINDOW}",
    ),
    (
        lambda: FusedScaleMaskSoftmax(window_size=(1, -2)),
        ValueError,
        f"FusedScaleMaskSoftmax: window_size is (1, -2), expected {WINDOW}",
    ),
    (
        lambda: FusedScaleMaskSoftmax()(None),
        TypeError,
        "FusedScaleMaskSoftmax: scores has type NoneType, expected an array",
    ),
    (
        lambda: FusedScaleMaskSoftmax(window_size=(1, 1))(X[0]),
        ValueError,
        "FusedScaleMaskSoftmax: scores has shape [8], expected at least two dimensions, queries "
        "and keys",
    ),
    (
        lambda: FusedScaleMaskSoftmax(window_size=(1, 1))(X, MASK[:3]),
        ValueError,
        "FusedScaleMaskSoftmax: mask has shape [3, 8], which does not broadcast to x of shape "
        "[4, 8]; True (non-zero) hides an element",
    ),
    (
        lambda: FusedScaleMaskSoftmax(window_size=(1, 1))(X, jnp.ones((4, 8))),
        TypeError,
        "FusedScaleMaskSoftmax: mask has dtype float32, expected bool or uint8; True (non-zero) "
        "hides an element",
    ),
]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    REFUSED,
    ids=[message.split(", exp")[0] for *_, message in REFUSED],
)
def test_refused_by_name(call: Callable[[], Any], error: Any, message: str) -> None:
    with pytest.raises(error) as raised:
        call()
    assert str(raised.value).split("\n---")[0] == message


def test_not_refused() -> None:
    """Values of NumPy, JAX or Flax that are equivalent to valid arguments."""
    key = jax.random.key(0)
    expected = bj.bias_dropout_add(X, p=0.5, seed=key)
    for training in (np.True_, jnp.asarray(True)):
        ours = bj.bias_dropout_add(X, p=0.5, seed=key, training=training)
        np.testing.assert_array_equal(ours, expected)
    np.testing.assert_array_equal(BiasDropoutAdd(np.float32(0.5))(X, rngs=key), expected)
    layer = BiasGELU(np.int64(8), param_dtype="bfloat16", rngs=nnx.Rngs(0))
    assert (layer.bias.shape, layer.bias.dtype) == ((8,), jnp.bfloat16)
    assert BiasGELU(8, use_bias=False, rngs=None).bias is None
    assert BiasGELU(8, rngs=nnx.Rngs(0).params).bias.shape == (8,)
    window = FusedScaleMaskSoftmax(window_size=[np.int32(1), -1])(X[:, :4])
    np.testing.assert_array_equal(window, FusedScaleMaskSoftmax(window_size=(1, -1))(X[:, :4]))
    np.testing.assert_array_equal(bj.make_viewless([1.0, 2.0]), [1.0, 2.0])
