"""Framework-free definitions of the ops: arguments, checks, derivative rules, references."""

from bridge.ops.bias_dropout_add import (
    BIAS_DROPOUT_ADD,
    BiasDropoutAddParams,
    check_bias_dropout_add,
)
from bridge.ops.bias_gelu import BIAS_GELU, BiasGeluParams, check_bias_gelu
from bridge.ops.definition import Call, Op, Role, Spec, ZerosLike
from bridge.ops.program import PROGRAM, ProgramParams
from bridge.ops.softmax import (
    SOFTMAX,
    SOFTMAX_DERIVATIVE,
    SoftmaxDerivativeParams,
    SoftmaxParams,
    check_softmax,
)

OPS = {op.name: op for op in (BIAS_GELU, SOFTMAX, SOFTMAX_DERIVATIVE, BIAS_DROPOUT_ADD, PROGRAM)}

__all__ = [
    "BIAS_DROPOUT_ADD",
    "BIAS_GELU",
    "OPS",
    "PROGRAM",
    "SOFTMAX",
    "SOFTMAX_DERIVATIVE",
    "BiasDropoutAddParams",
    "BiasGeluParams",
    "Call",
    "Op",
    "ProgramParams",
    "Role",
    "SoftmaxDerivativeParams",
    "SoftmaxParams",
    "Spec",
    "ZerosLike",
    "check_bias_dropout_add",
    "check_bias_gelu",
    "check_softmax",
]
