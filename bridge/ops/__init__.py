"""Framework-free definitions of the ops: arguments, checks, derivative rules, references."""

from bridge.ops.definition import Call, Op, Role, Spec, ZerosLike
from bridge.ops.program_params import ProgramParams
from bridge.ops.run_program import PROGRAM
from bridge.ops.softmax import (
    SOFTMAX,
    SOFTMAX_DERIVATIVE,
    SoftmaxDerivativeParams,
    SoftmaxParams,
    check_softmax,
)

OPS = {op.name: op for op in (SOFTMAX, SOFTMAX_DERIVATIVE, PROGRAM)}

__all__ = [
    "OPS",
    "PROGRAM",
    "SOFTMAX",
    "SOFTMAX_DERIVATIVE",
    "Call",
    "Op",
    "ProgramParams",
    "Role",
    "SoftmaxDerivativeParams",
    "SoftmaxParams",
    "Spec",
    "ZerosLike",
    "check_softmax",
]
