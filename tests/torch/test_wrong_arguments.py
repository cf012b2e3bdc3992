"""Arguments of a wrong kind: the error names the argument and its value."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import bridge.torch as bt
from bridge.torch import apex, liger, megatron, slapo, towhee

X, BIAS, MASK = torch.randn(2, 3), torch.randn(3), torch.zeros(2, 3, dtype=torch.bool)
PAIRS = torch.randn(2, 6)
LABELS = torch.tensor([0, 2])
SCORES = torch.randn(1, 2, 4, 4)
VIEW = torch.randn(3, 2).mT
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # nested tensors are a prototype
    NESTED = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)])
    JAGGED = torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)], layout=torch.jagged)

Function = Callable[[Any], Any]


def softmax_module(**changes: Any) -> megatron.FusedScaleMaskSoftmax:
    arguments: dict[str, Any] = {
        "input_in_fp16": False,
        "input_in_bf16": False,
        "attn_mask_type": "padding",
        "scaled_masked_softmax_fusion": True,
        "mask_func": None,
        "softmax_in_fp32": True,
        "scale": None,
    }
    return megatron.FusedScaleMaskSoftmax(**{**arguments, **changes})


train, infer = megatron.bias_dropout_add_fused_train, megatron.bias_dropout_add_fused_inference

# By the name of the argument, which ends each key: the calls with such an argument.
TENSORS: dict[str, Function] = {
    "bias_gelu x": lambda v: bt.bias_gelu(v, BIAS),
    "bias_gelu bias": lambda v: bt.bias_gelu(X, v),
    "bias_gelu out": lambda v: bt.bias_gelu(X, out=v),
    "bias_gelu_ x": lambda v: bt.bias_gelu_(v),
    "bias_gelu_ bias": lambda v: bt.bias_gelu_(X.clone(), v),
    "bias_dropout_add x": lambda v: bt.bias_dropout_add(v),
    "bias_dropout_add bias": lambda v: bt.bias_dropout_add(X, v),
    "bias_dropout_add residual": lambda v: bt.bias_dropout_add(X, None, v),
    "scaled_softmax x": lambda v: bt.scaled_softmax(v),
    "scaled_softmax out": lambda v: bt.scaled_softmax(X, out=v),
    "scaled_masked_softmax x": lambda v: bt.scaled_masked_softmax(v, MASK),
    "scaled_masked_softmax mask": lambda v: bt.scaled_masked_softmax(X, v),
    "scaled_causal_softmax x": lambda v: bt.scaled_causal_softmax(v),
    "scaled_softmax_backward g": lambda v: bt.scaled_softmax_backward(v, X),
    "scaled_softmax_backward y": lambda v: bt.scaled_softmax_backward(X, v),
    "all_gather x": lambda v: bt.all_gather(v),
    "megatron bias_gelu bias": lambda v: megatron.bias_gelu(v, X),
    "megatron bias_gelu x": lambda v: megatron.bias_gelu(BIAS, v),
    "bias_gelu_back g": lambda v: megatron.bias_gelu_back(v, BIAS, X),
    "bias_gelu_back bias": lambda v: megatron.bias_gelu_back(X, v, X),
    "bias_gelu_back x": lambda v: megatron.bias_gelu_back(X, BIAS, v),
    "GeLUFunction x": lambda v: megatron.GeLUFunction.apply(v, BIAS),
    "GeLUFunction bias": lambda v: megatron.GeLUFunction.apply(X, v),
    "ScaledSoftmax x": lambda v: megatron.ScaledSoftmax.apply(v, 1.0),
    "ScaledMaskedSoftmax mask": lambda v: megatron.ScaledMaskedSoftmax.apply(X, v, 1.0),
    "train x": lambda v: train((v, BIAS), X, 0.1),
    "train bias": lambda v: train((X, v), X, 0.1),
    "train residual": lambda v: train((X, BIAS), v, 0.1),
    "inference x": lambda v: infer((v, BIAS), X, 0.1),
    "inference bias": lambda v: infer((X.clone(), v), X, 0.1),
    "inference residual": lambda v: infer((X.clone(), BIAS), v, 0.1),
    "FusedScaleMaskSoftmax x": lambda v: softmax_module()(v, None),
    "FusedScaleMaskSoftmax mask": lambda v: softmax_module()(SCORES, v),
    "with a window x": lambda v: softmax_module(window_size=(1, 1))(v, None),
    "with a window mask": lambda v: softmax_module(window_size=(1, 1))(SCORES, v),
    "FusedScaleMaskSoftmax softmax_offset": lambda v: softmax_module()(SCORES, None, v),
    "rms_norm x": bt.rms_norm,
    "rms_norm weight": lambda v: bt.rms_norm(X, v),
    "rms_norm residual": lambda v: bt.rms_norm(X, None, v),
    "layer_norm x": bt.layer_norm,
    "RMSNorm x": bt.RMSNorm(3),
    "swiglu gate": bt.swiglu,
    "swiglu weight": lambda v: bt.swiglu(X, X, weight=v),
    "squared_relu x": bt.squared_relu,
    "weighted squared_relu x": lambda v: bt.squared_relu(v, torch.ones(2)),
    "squared_relu weight": lambda v: bt.squared_relu(X, v),
    "rotary x": lambda v: bt.rotary(v, X, X),
    "rotary cos": lambda v: bt.rotary(PAIRS, v, X),
    "rms_norm_rotary x": lambda v: bt.rms_norm_rotary(v, X, X, X),
    "rms_norm_rotary weight": lambda v: bt.rms_norm_rotary(PAIRS, v, X, X),
    "gated_rms_norm x": lambda v: bt.gated_rms_norm(v, X),
    "gated_rms_norm gate": lambda v: bt.gated_rms_norm(X, v),
    "dyt x": lambda v: bt.dyt(v, X[0, :1]),
    "dyt alpha": lambda v: bt.dyt(X, v),
    "poly_norm x": lambda v: bt.poly_norm(v, X[0]),
    "poly_norm weight": lambda v: bt.poly_norm(X, v),
    "interpolate input": lambda v: bt.interpolate(v, 1),
    "max_pool input": lambda v: bt.max_pool(v, 1),
    "avg_pool input": lambda v: bt.avg_pool(v, 1),
    "adaptive_avg_pool input": lambda v: bt.adaptive_avg_pool(v, 1),
    "batch_norm input": lambda v: bt.batch_norm(v, None, None, training=True),
    "batch_norm weight": lambda v: bt.batch_norm(X, None, None, v, training=True),
    "group_norm x": lambda v: bt.group_norm(v, 1),
    "group_norm weight": lambda v: bt.group_norm(X, 1, v),
    "log_softmax x": bt.log_softmax,
    "cross_entropy logits": lambda v: bt.cross_entropy(v, LABELS),
    "CrossEntropyLoss input": lambda v: bt.CrossEntropyLoss()(v, LABELS),
    "LinearCrossEntropyLoss input": lambda v: bt.LinearCrossEntropyLoss(3, 4)(v, LABELS),
    "Softmax input": bt.Softmax(0),
    "GLU gate": bt.GLU("relu"),
    "SquaredReLU x": bt.SquaredReLU(),
    "linear_cross_entropy hidden": lambda v: bt.linear_cross_entropy(v, X, LABELS),
    "linear_cross_entropy weight": lambda v: bt.linear_cross_entropy(X, v, LABELS),
    "linear_token_log_probs hidden": lambda v: bt.linear_token_log_probs(v, X, LABELS),
    "linear_divergence q_weight": lambda v: bt.linear_divergence(X, X, X, v),
    "preference_loss rejected": lambda v: bt.preference_loss(X, v),
    "bias_swiglu bias": lambda v: megatron.bias_swiglu(PAIRS, v),
    "bias_swiglu y": lambda v: megatron.bias_swiglu(v, BIAS),
    "geglu y": megatron.geglu,
    "weighted_swiglu weights": lambda v: megatron.weighted_swiglu(PAIRS, v),
    "bias_swiglu_impl y": lambda v: megatron.bias_swiglu_impl(v, None),
    "swiglu_back g": lambda v: megatron.swiglu_back(v, PAIRS),
    "swiglu_back y": lambda v: megatron.swiglu_back(X, v),
    "weighted_squared_relu_impl x": lambda v: megatron.weighted_squared_relu_impl(v, X[:, :1]),
    "weighted_squared_relu_impl weights": lambda v: megatron.weighted_squared_relu_impl(X, v),
    "FusedRMSNorm x": lambda v: apex.FusedRMSNorm(3)(v),
    "fused_layer_norm_affine weight": lambda v: apex.fused_layer_norm_affine(X, v, BIAS, 3),
    "liger_geglu up": lambda v: liger.liger_geglu(X, v),
    "liger_softmax x": liger.liger_softmax,
    "LigerModulatedRMSNorm scale": lambda v: liger.LigerModulatedRMSNorm(3)(X, v),
    "liger_llama4_text_rotary_pos_emb xq": lambda v: liger.liger_llama4_text_rotary_pos_emb(
        v, SCORES, X
    ),
    "liger_qwen2vl_mrope k": lambda v: liger.liger_qwen2vl_mrope(SCORES, v, X, X, (1, 1)),
    "liger_rope q": lambda v: liger.liger_rope(v, SCORES, X, X),
    "new_gelu x": slapo.new_gelu,
    "bias_new_gelu x": lambda v: slapo.bias_new_gelu(v, BIAS),
    "bias_new_gelu bias": lambda v: slapo.bias_new_gelu(X, v),
    "bias_dropout x": lambda v: slapo.bias_dropout(v, BIAS),
    "bias_dropout bias": lambda v: slapo.bias_dropout(X, v),
}
NO_TENSORS = {"a": "str", 2.5: "float", (1.0,): "tuple"}


@pytest.mark.parametrize("what", TENSORS)
def test_tensors(what: str) -> None:
    argument = what.split()[-1]
    for value, kind in (*NO_TENSORS.items(), (np.ones(3), "ndarray")):
        with pytest.raises(TypeError, match=rf"\b{argument}\b.* type {kind}\b"):
            TENSORS[what](value)
    for nested in (NESTED, JAGGED):
        # A drop-in's error uses the original's names of arguments.
        with pytest.raises(TypeError, match=rf"\b({argument}|input)\b.*\bnested\b|AllGather"):
            TENSORS[what](nested)


NUMBERS: dict[str, Function] = {
    "bias_dropout_add p": lambda v: bt.bias_dropout_add(X, p=v),
    "BiasDropoutAdd p": bt.BiasDropoutAdd,
    "train p": lambda v: train((X, BIAS), X, v),
    "inference p": lambda v: infer((X.clone(), BIAS), X, v),
    "bias_dropout p": lambda v: slapo.bias_dropout(X, BIAS, v),
    "scaled_softmax scale": lambda v: bt.scaled_softmax(X, v),
    "scaled_masked_softmax scale": lambda v: bt.scaled_masked_softmax(X, MASK, v),
    "scaled_causal_softmax scale": lambda v: bt.scaled_causal_softmax(X, v),
    "scaled_softmax_backward scale": lambda v: bt.scaled_softmax_backward(X, X, v),
    "ScaledSoftmax scale": lambda v: megatron.ScaledSoftmax.apply(X, v),
    "FusedScaleMaskSoftmax scale": lambda v: softmax_module(scale=v),
}


@pytest.mark.parametrize("what", NUMBERS)
def test_numbers(what: str) -> None:
    argument = what.split()[-1]
    for value, words in (
        (np.full(3, 0.5), r"has shape \[3\], expected a"),
        (torch.full((2, 3), 0.5), r"has shape \[2, 3\], expected a"),
        (torch.tensor(0.5j), "has dtype complex64, expected a"),
        (NESTED, "is nested, expected a"),
        ([0.5], "has type list, expected a"),
        (0.5j, "has type complex, expected a"),
    ):
        with pytest.raises(TypeError, match=rf": {argument} {words}"):
            NUMBERS[what](value)
    NUMBERS[what](np.float32(0.5))
    NUMBERS[what](torch.tensor(0.5))  # no dimensions: one number


@pytest.mark.parametrize("argument", ["seed", "offset"])
@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (np.array(0.5), TypeError, "has type ndarray, dtype float64 and shape [], expected an int"),
        (np.ones(3, np.float32), TypeError, "ndarray, dtype float32 and shape [3], expected an"),
        (
            np.ones(3, np.int64),
            TypeError,
            "ndarray, dtype int64 and shape [3], expected an integer",
        ),
        (np.float32(1), TypeError, "has type float32, dtype float32 and shape [], expected an int"),
        (torch.tensor(0.5), TypeError, "has dtype float32, expected an integer dtype"),
        (torch.tensor(True), TypeError, "has dtype bool, expected an integer dtype"),
        (torch.ones(3, dtype=torch.int32), ValueError, "has shape [3], expected a 0-dimensional"),
        (NESTED, TypeError, "is nested, expected a dense tensor"),
        ([1], TypeError, "has type list, expected an integer"),
    ],
    # Without the array's numbers, which differ between runs: pytest-xdist compares the names.
    ids=lambda value: "nested" if value is NESTED else str(value),
)
def test_integers(argument: str, value: Any, error: Any, words: str) -> None:
    named: Any = {"seed": 1, argument: value}
    named_argument = re.escape(f"bias_dropout_add: {argument} ")
    with pytest.raises(error, match=f"^{named_argument}.*{re.escape(words)}"):
        bt.bias_dropout_add(X, p=0.5, **named)


FLAGS: dict[str, Function] = {
    "bias_dropout_add training": lambda v: bt.bias_dropout_add(X, training=v),
    "scaled_softmax_backward causal": lambda v: bt.scaled_softmax_backward(X, X, causal=v),
    "make_viewless_tensor requires_grad": lambda v: bt.make_viewless_tensor(VIEW, v, False),
    "make_viewless_tensor keep_graph": lambda v: bt.make_viewless_tensor(VIEW, True, v),
    "BiasGELU bias": lambda v: bt.BiasGELU(3, bias=v),
    "all_gather tiled": lambda v: bt.all_gather(X, tiled=v),
    "all_gather async_op": lambda v: bt.all_gather(X, async_op=v),
    "all_gather check": lambda v: bt.all_gather(X, check=v),
    "FusedScaleMaskSoftmax input_in_fp16": lambda v: softmax_module(input_in_fp16=v),
    "FusedScaleMaskSoftmax input_in_bf16": lambda v: softmax_module(input_in_bf16=v),
    "FusedScaleMaskSoftmax softmax_in_fp32": lambda v: softmax_module(softmax_in_fp32=v),
}


@pytest.mark.parametrize("what", FLAGS)
def test_flags(what: str) -> None:
    function, argument = what.split()
    for value, kind in ((np.ones(3), "ndarray"), (X, "Tensor")):
        message = f"{function}: {argument} has type {kind}, expected True or False"
        with pytest.raises(TypeError, match=message):
            FLAGS[what](value)
    FLAGS[what](np.bool_(True))


OTHERS: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "BiasGELU(None)": (
        lambda: bt.BiasGELU(None),  # type: ignore[arg-type]
        TypeError,
        "BiasGELU: features has type NoneType, expected an integer",
    ),
    "BiasGELU(3.0)": (
        lambda: bt.BiasGELU(3.0),  # type: ignore[arg-type]
        TypeError,
        "BiasGELU: features has type float, expected an integer",
    ),
    "BiasGELU(-1)": (
        lambda: bt.BiasGELU(-1),
        ValueError,
        "BiasGELU: features is -1, expected at least 0",
    ),
    "BiasGELU, form": (
        lambda: bt.BiasGELU(3, "relu"),
        ValueError,
        "BiasGELU: approximate is 'relu', expected one of 'tanh', 'none', 'sigmoid'",
    ),
    "BiasGELU, dtype of integers": (
        lambda: bt.BiasGELU(3, dtype=torch.int64),
        TypeError,
        "BiasGELU: dtype is torch.int64, expected one of float16",
    ),
    "BiasGELU, no dtype": (
        lambda: bt.BiasGELU(3, dtype=["float32"]),  # type: ignore[arg-type]
        TypeError,
        "BiasGELU: dtype is ['float32'], expected one of float16",
    ),
    "a number as window": (
        lambda: softmax_module(window_size=3),
        ValueError,
        "FusedScaleMaskSoftmax: window_size is 3, expected (left, right) in keys",
    ),
    "an array as window": (
        lambda: softmax_module(window_size=np.ones(2)),
        ValueError,
        "FusedScaleMaskSoftmax: window_size is array([1., 1.]), expected (left, right)",
    ),
    "an array as mask type": (
        lambda: softmax_module(attn_mask_type=np.ones(3)),
        ValueError,
        "FusedScaleMaskSoftmax: attn_mask_type is array([1., 1., 1.]), expected one of padding",
    ),
    "a tensor as mask type": (
        lambda: softmax_module(attn_mask_type=torch.ones(2)),
        ValueError,
        "FusedScaleMaskSoftmax: attn_mask_type is tensor([1., 1.]), expected one of padding",
    ),
    "offsets of too many heads": (
        lambda: softmax_module()(SCORES, None, torch.zeros(3)),
        ValueError,
        "softmax_offset has shape [3], expected [2], one for each head of input",
    ),
    "no pair": (
        lambda: train(X, X, 0.1),  # type: ignore[arg-type]
        TypeError,
        "bias_dropout_add: x_with_bias has type Tensor, expected a pair (x, bias)",
    ),
    "a pair of one": (
        lambda: infer((X,), X, 0.1),  # type: ignore[arg-type]
        TypeError,
        "bias_dropout_add: x_with_bias has type tuple, expected a pair (x, bias)",
    ),
    "viewless of no tensor": (
        lambda: megatron.MakeViewlessTensor.apply([1.0], True),  # type: ignore[arg-type]
        TypeError,
        "MakeViewlessTensor: inp has type list, expected torch.Tensor",
    ),
    "data of no tensor": (
        lambda: megatron.safely_set_viewless_tensor_data("a", X),  # type: ignore[arg-type]
        TypeError,
        "safely_set_viewless_tensor_data: tensor has type str, expected torch.Tensor",
    ),
    "no tensor as data": (
        lambda: megatron.safely_set_viewless_tensor_data(X.clone(), None),  # type: ignore[arg-type]
        TypeError,
        "safely_set_viewless_tensor_data: new_data_tensor has type NoneType, expected",
    ),
    "dim a word": (lambda: bt.all_gather(X, dim="a"), TypeError, "dim is not an integer, got"),  # type: ignore[call-overload]
    "grad a list, unchecked": (
        lambda: bt.all_gather(X, grad=["sum"], check=False),  # type: ignore[call-overload]
        ValueError,
        "all_gather: grad is not one of 'sum', 'local', 'mean', got",
    ),
    "group a number": (
        lambda: bt.all_gather(X, group=3),
        TypeError,
        "all_gather: group has type int, expected a ProcessGroup",
    ),
    "args without numbers": (
        lambda: towhee.AllGather.apply(X, None),
        ValueError,
        "AllGather: args has no integers world_size and local_rank (or rank)",
    ),
    "from_jax, static_argnums": (
        lambda: bt.from_jax(abs, static_argnums=1.5),  # type: ignore[arg-type]
        TypeError,
        "from_jax: static_argnums has type float, expected int, or several of them",
    ),
    "from_jax, static_argnames": (
        lambda: bt.from_jax(abs, static_argnames=3),  # type: ignore[arg-type]
        TypeError,
        "from_jax: static_argnames has type int, expected str, or several of them",
    ),
    "JaxModule, static_argnames": (
        lambda: bt.JaxModule({"w": np.ones(2)}, lambda v, x: x, static_argnames=[1]),  # type: ignore[list-item]
        TypeError,
        "JaxModule: static_argnames holds 1 of type int, expected str",
    ),
    "JaxModule of nothing": (
        lambda: bt.JaxModule(None),
        ValueError,
        "JaxModule: module has type NoneType, which has no method '__call__'",
    ),
}


@pytest.mark.parametrize(("call", "error", "message"), OTHERS.values(), ids=OTHERS.keys())
def test_others(call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        call()


def test_a_nested_tensor_has_a_viewless_one() -> None:
    assert isinstance(bt.make_viewless_tensor(NESTED, True, True), Tensor)
    with pytest.raises(AssertionError, match="shape nested is a view of one of shape"):
        megatron.assert_viewless_tensor(JAGGED)


# Calls on a tensor that requires a gradient and on another tensor, with a shape that fits and one
# that does not.
SHAPES: dict[str, tuple[Callable[[Tensor, Tensor], Any], tuple[int, ...], tuple[int, ...]]] = {
    "rms_norm": (lambda x, w: bt.rms_norm(x, w), (4,), (3,)),
    "rms_norm, residual": (lambda x, r: bt.rms_norm(x, None, r), (2, 4), (3, 4)),
    "layer_norm": (lambda x, b: bt.layer_norm(x, None, b), (4,), (3,)),
    "dyt": (lambda x, w: bt.dyt(x, x[0, :1], w), (4,), (3,)),
    "poly_norm": (lambda x, w: bt.poly_norm(x, w), (3,), (4,)),
    "gated_rms_norm": (lambda x, g: bt.gated_rms_norm(x, g), (2, 4), (2, 3)),
    "group_norm": (lambda x, w: bt.group_norm(x, 2, w), (4,), (3,)),
    "batch_norm": (lambda x, w: bt.batch_norm(x, None, None, w, training=True), (4,), (3,)),
    "glu": (lambda x, u: bt.glu(x, u), (2, 4), (2, 3)),
    "swiglu, weight": (lambda x, w: bt.swiglu(x, weight=w), (2,), (3,)),
    "swiglu, bias": (lambda x, b: bt.swiglu(x, None, b), (2,), (3,)),
    "squared_relu": (lambda x, w: bt.squared_relu(x, w), (2,), (3,)),
    "rotary": (lambda x, c: bt.rotary(x, c, c), (2, 2), (3, 2)),
    "rms_norm_rotary": (lambda x, w: bt.rms_norm_rotary(x, w, x[:, :2], x[:, 2:]), (4,), (3,)),
    "bias_gelu": (lambda x, b: bt.bias_gelu(x, b), (4,), (3,)),
    "bias_dropout_add": (lambda x, r: bt.bias_dropout_add(x, None, r, seed=1), (2, 4), (3, 4)),
    "cross_entropy": (lambda x, z: bt.cross_entropy(x, z.long()), (2,), (3,)),
    "cross_entropy, none": (
        lambda x, z: bt.cross_entropy(x, z.long(), reduction="none"),
        (2,),
        (3,),
    ),
    "token_log_probs": (lambda x, z: bt.token_log_probs(x, z.long()), (2,), (3,)),
    "kl_div": (lambda x, y: bt.kl_div(x, y), (2, 4), (3, 4)),
    "scaled_masked_softmax": (lambda x, m: bt.scaled_masked_softmax(x, m > 1), (2, 4), (3, 4)),
    "scaled_softmax_backward": (lambda x, y: bt.scaled_softmax_backward(x, y), (2, 4), (2, 3)),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_that_does_not_fit_after_calls_that_autograd_recorded(name: str) -> None:
    """Errors are the same as in a first call: the cached entry of a kind does not cover shapes."""
    call, fitting, other = SHAPES[name]
    x = torch.randn(2, 4, requires_grad=True)
    said = []
    for _ in range(2):
        with pytest.raises(ValueError, match=f"^{name.split(',')[0]}: ") as caught:
            call(x, torch.zeros(other))
        said.append(str(caught.value))
        for _ in range(2):
            call(x, torch.zeros(fitting))
    assert said[0] == said[1]


def test_a_shape_that_does_not_fit_beside_another_object_of_the_same_number() -> None:
    """The kernel of an equal number was called before, but not with this very object."""
    x = torch.randn(2, 4, requires_grad=True)
    for _ in range(2):
        bt.rms_norm(x, torch.ones(4), eps=float("3e-6"))
    with pytest.raises(ValueError, match=r"^rms_norm: weight has shape \[3\], expected \[4\]"):
        bt.rms_norm(x, torch.ones(3), eps=float("3e-6"))
