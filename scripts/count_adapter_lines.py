#!/usr/bin/env python3
"""Counts the lines of code of an op in the two adapters, outside its kernel and definition.

These are the lines of code in bridge/torch/_ops/<op>.py and bridge/jax/_ops/<op>.py, as formatted,
without docstrings, comments and blank lines. Import lines, which only name code elsewhere, have a
column of their own. The exit status is 1 unless every op has fewer than LIMIT lines without
imports.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "bridge"
ADAPTERS = ("torch", "jax")
OPS = ("bias_gelu", "softmax", "bias_dropout_add")
LIMIT = 80
# Other files for some ops, with a description of their contents.
BESIDES = {
    "torch/_ops/integers.py": "seeds and offsets",
    "jax/_ops/integers.py": "seeds and offsets",
    "torch/_ops/sinks.py": "softmax beside a sink",
    "jax/_ops/sinks.py": "softmax beside a sink",
    "torch/_ops/viewless.py": "viewless tensors, which have neither kernel nor definition",
    "torch/_drop_ins/functions.py": "what drop-ins for autograd Functions have in common",
    "torch/_drop_ins/broadcasting.py": "the drop-ins' operands that broadcast",
    "torch/_drop_ins/scale_mask_softmax.py": "the drop-ins of softmax",
    "torch/_drop_ins/gates.py": "the drop-ins' gated units with a bias and weights",
    "torch/_drop_ins/swiglu.py": "those of Megatron-LM's SwiGLU",
    "torch/_drop_ins/geglu.py": "those of its GEGLU",
    "torch/_drop_ins/squared_relu.py": "those of its squared ReLU",
    "torch/_drop_ins/norms.py": "norms over several dimensions",
    "torch/_drop_ins/sizes.py": "the check of sizes in constructors",
    "torch/_drop_ins/apex_norms.py": "the drop-ins of apex's functions of norms",
    "torch/_drop_ins/apex_rotary.py": "those of its rotary embeddings",
    "torch/_drop_ins/fused_layer_norm.py": "the drop-in of Megatron-LM's layer norm",
    "torch/_drop_ins/liger_norms.py": "the drop-ins of Liger-Kernel's norms",
    "torch/_drop_ins/liger_modulated_norm.py": "that of its modulated norm",
    "torch/_drop_ins/liger_gates.py": "those of its gated units",
    "torch/_drop_ins/liger_mlps.py": "its layers in tiles, in one kernel, and of experts",
    "torch/_drop_ins/liger_rotary.py": "its rotary embeddings",
    "torch/_drop_ins/liger_softmax.py": "its softmax",
    "torch/_drop_ins/losses.py": "the drop-ins of cross-entropy of Megatron-LM and apex",
    "torch/_drop_ins/liger_losses.py": "those of Liger-Kernel",
    "torch/_drop_ins/liger_split_losses.py": "that of rows that ranks share",
    "torch/_drop_ins/huggingface_layers.py": "those of Hugging Face's layers and losses",
    "torch/_drop_ins/huggingface_forms.py": "the op that a layer of a model is",
    "torch/_drop_ins/huggingface_trial.py": "trials of a layer on random rows",
    "torch/_drop_ins/huggingface_norms.py": "the forms of norms",
    "torch/_drop_ins/huggingface_mlps.py": "the forms of MLPs and activations",
    "torch/_drop_ins/huggingface_rotary.py": "the forms of rotary embeddings",
    "torch/_drop_ins/huggingface_models.py": "models whose layers are replaced",
    "torch/_drop_ins/huggingface_linear_loss.py": "models whose loss needs no logits",
    "torch/megatron.py": "the drop-ins of Megatron-LM",
    "torch/apex.py": "the drop-ins of apex's modules",
    "torch/liger.py": "the drop-ins of Liger-Kernel",
    "torch/huggingface.py": "the drop-ins of Hugging Face",
    "torch/slapo.py": "the drop-ins of slapo",
    "torch/_ops/modules.py": "modules",
    "torch/_ops/gate_modules.py": "modules of gated units",
    "torch/_ops/softmax_modules.py": "modules of softmax and its logarithm",
    "torch/_ops/norm_modules.py": "modules of norms",
    "torch/_ops/loss_modules.py": "modules of losses",
    "jax/nnx.py": "modules",
    "jax/_ops/nnx_gates.py": "modules of gated units",
    "jax/_ops/nnx_norms.py": "modules of norms",
}
_NO_CODE = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)


def count(file: str) -> tuple[int, int]:
    """Returns the lines of code of a file of the package: (without imports, imports)."""
    source = (PACKAGE / file).read_text()
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    imports: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.update(lines_of(node))
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node, clean=False
        ):
            lines.difference_update(lines_of(node.body[0]))
    return len(lines - imports), len(lines & imports)


def lines_of(node: ast.stmt) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def count_op(op: str) -> tuple[int, int, int, int]:
    """Returns the lines of code of an op: (in torch, in JAX, in both, imports of both)."""
    counts = [count(f"{adapter}/_ops/{op}.py") for adapter in ADAPTERS]
    code, imports = (sum(numbers) for numbers in zip(*counts, strict=True))
    return counts[0][0], counts[1][0], code, imports


def main() -> int:
    too_long = 0
    print(f"{'op':<38} {'torch':>5} {'jax':>5} {'both':>5} {'imports':>8}")
    for op in OPS:
        in_torch, in_jax, code, imports = count_op(op)
        too_long += code >= LIMIT
        print(f"{op:<38} {in_torch:>5} {in_jax:>5} {code:>5} {imports:>8}")
    print("\nbesides")
    for file, what in BESIDES.items():
        code, imports = count(file)
        print(f"{file:<38} {'':>11} {code:>5} {imports:>8}   {what}")
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main())
