"""Framework-free definitions of the ops: arguments, checks, derivative rules, references."""

from bridge.ops.definition import Call, Op, Role, Spec, ZerosLike
from bridge.ops.program_params import ProgramParams
from bridge.ops.run_program import PROGRAM

OPS = {op.name: op for op in (PROGRAM,)}

__all__ = [
    "OPS",
    "PROGRAM",
    "Call",
    "Op",
    "ProgramParams",
    "Role",
    "Spec",
    "ZerosLike",
]
