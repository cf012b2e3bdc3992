"""Framework-free definitions of the ops: arguments, checks, derivative rules, references."""

from bridge.ops.bias_gelu import BIAS_GELU, BiasGeluParams, check_bias_gelu
from bridge.ops.definition import Call, Op, Role, Spec

OPS = {op.name: op for op in (BIAS_GELU,)}

__all__ = ["BIAS_GELU", "OPS", "BiasGeluParams", "Call", "Op", "Role", "Spec", "check_bias_gelu"]
