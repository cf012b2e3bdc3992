#!/usr/bin/env python3
"""Counts the lines of code of each family of ops in the two adapters.

A family is a file of declarations in bridge/catalogue. Its lines are those of its files in
bridge/torch/_ops and bridge/jax/_ops, as formatted, without docstrings, comments, blank lines and
overloads: the code outside kernels and declarations. Import lines, which only name code elsewhere,
have a column of their own. The exit status is 1 unless every family has fewer than LIMIT lines
without imports.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "bridge"
ADAPTERS = ("torch", "jax")
FAMILIES = (
    "attention",
    "bias_dropout_add",
    "bias_gelu",
    "choices/experts",
    "choices/sampling",
    "choices/top_k",
    "cross_entropy",
    "dyt",
    "embedding",
    "gated_norms",
    "gates",
    "group_norm",
    "linear_cross_entropy",
    "log_probs",
    "norms",
    "post_training/divergences",
    "post_training/linear_numbers",
    "post_training/policy_loss",
    "post_training/preference_loss",
    "products",
    "quantization",
    "rotary",
    "sinks",
    "softmax",
    "vision/batch_norm",
    "vision/interpolation",
    "vision/pooling",
)
LIMIT = 80
# Files outside the families, with a description of their contents.
BESIDES = {
    "torch/_ops/quantized_entries.py": "paths into gated units and quantised norms",
    "torch/_ops/labels.py": "checks of labels",
    "jax/_ops/labels.py": "checks of labels",
    "torch/_ops/choices/functions.py": "functions of tensors for mixtures of experts",
    "jax/_ops/choices/functions.py": "functions of arrays for mixtures of experts",
    "jax/_ops/dot_general.py": "JAX's general product",
    "torch/_ops/product_modules.py": "the linear layer as a module",
    "torch/_ops/convolutions.py": "torch's convolutions",
    "torch/_ops/convolution_modules.py": "convolutions as modules",
    "jax/_ops/convolutions.py": "JAX's convolutions",
    "jax/_ops/planned_convolutions.py": "JAX's convolutions with a bias",
    "jax/_ops/convolution_arguments.py": "the arguments of JAX's convolutions",
    "jax/_ops/nnx_attention.py": "attention in the form of Flax",
    "torch/_ops/split_vocabulary.py": "a vocabulary split among ranks",
    "torch/_ops/optimizer_operands.py": "operands of optimizers' kernels",
    "torch/_ops/clipping.py": "clipping by the global norm",
    "jax/_ops/leaves.py": "leaves of trees of gradients",
    "jax/_ops/clipping.py": "clipping by the global norm",
    "torch/optim.py": "optimizers",
    "jax/optim.py": "optimizers",
    "torch/_ops/viewless.py": "viewless tensors, without kernel and definition",
    "jax/_ops/viewless.py": "the identity that stands for it",
    "torch/_drop_ins/function_classes.py": "shared code of drop-ins for autograd Functions",
    "torch/_drop_ins/broadcasting.py": "broadcasting operands of drop-ins",
    "torch/_drop_ins/scale_mask_softmax.py": "drop-ins for softmax",
    "torch/_drop_ins/packed_gates.py": "gated units with a bias and weights, for drop-ins",
    "torch/_drop_ins/swiglu.py": "drop-ins for Megatron-LM's SwiGLU",
    "torch/_drop_ins/geglu.py": "drop-ins for Megatron-LM's GEGLU",
    "torch/_drop_ins/squared_relu.py": "drop-ins for Megatron-LM's squared ReLU",
    "torch/_drop_ins/norms_over_dimensions.py": "norms over several dimensions",
    "torch/_drop_ins/sizes.py": "the check of sizes in constructors",
    "torch/_drop_ins/apex_norms.py": "drop-ins for apex's functions of norms",
    "torch/_drop_ins/apex_rotary.py": "drop-ins for apex's rotary embeddings",
    "torch/_drop_ins/fused_layer_norm.py": "the drop-in for Megatron-LM's layer norm",
    "torch/_drop_ins/liger/norm_classes.py": "drop-ins for Liger-Kernel's norms",
    "torch/_drop_ins/liger/other_norms.py": "Liger-Kernel's DyT, PolyNorm and group norm",
    "torch/_drop_ins/liger/modulated_norm.py": "the drop-in for Liger-Kernel's modulated norm",
    "torch/_drop_ins/liger/gated_units.py": "drop-ins for Liger-Kernel's gated units",
    "torch/_drop_ins/liger/feed_forward.py": "Liger-Kernel's feed-forward layers",
    "torch/_drop_ins/liger/rotary_classes.py": "Liger-Kernel's rotary embeddings",
    "torch/_drop_ins/liger/softmax_class.py": "Liger-Kernel's softmax",
    "torch/_drop_ins/viewless.py": "the drop-in for Megatron-LM's MakeViewlessTensor",
    "torch/_ops/post_training/linear_compositions.py": "compositions of linear layers' numbers",
    "torch/_drop_ins/losses.py": "drop-ins for cross-entropy of Megatron-LM and apex",
    "torch/_drop_ins/liger/cross_entropies.py": "drop-ins for losses of Liger-Kernel",
    "torch/_drop_ins/liger/split_losses.py": "the drop-in for Liger-Kernel's split loss",
    "torch/_drop_ins/liger/chunked_log_probs.py": "what Liger-Kernel's chunked losses share",
    "torch/_drop_ins/liger/dpo_losses.py": "further losses of Liger-Kernel's DPO",
    "torch/_drop_ins/liger/chunked_preferences.py": "Liger-Kernel's losses of preferences",
    "torch/_drop_ins/liger/chunked_policy.py": "Liger-Kernel's policy gradients",
    "torch/_drop_ins/liger/chunked_distillation.py": "Liger-Kernel's distillation",
    "torch/_drop_ins/liger/chunked_modules.py": "the modules of Liger-Kernel's chunked losses",
    "torch/_drop_ins/module_forms.py": "the forms of torch's own modules",
    "torch/_drop_ins/replacement.py": "any model with replaced modules",
    "torch/_drop_ins/huggingface/layers.py": "drop-ins for Hugging Face's layers and losses",
    "torch/_drop_ins/huggingface/forms.py": "the op of a model's layer",
    "torch/_drop_ins/huggingface/trial.py": "trials of a layer on random rows",
    "torch/_drop_ins/huggingface/norm_forms.py": "the forms of norms",
    "torch/_drop_ins/huggingface/mlp_forms.py": "the forms of MLPs and activations",
    "torch/_drop_ins/huggingface/rotary_forms.py": "the forms of rotary embeddings",
    "torch/_drop_ins/huggingface/linear_forms.py": "the forms of linear layers and embeddings",
    "torch/_drop_ins/huggingface/attention.py": "attention in the form of transformers",
    "torch/_drop_ins/huggingface/models.py": "models with replaced layers",
    "torch/_drop_ins/huggingface/linear_loss.py": "models with a loss without logits",
    "torch/_drop_ins/huggingface/hub_layers.py": "layers for Hugging Face's kernel hub",
    "torch/_drop_ins/huggingface/hub_repository.py": "a local repository of the kernel hub",
    "torch/megatron.py": "drop-ins for Megatron-LM",
    "torch/apex.py": "drop-ins for apex's modules",
    "torch/liger.py": "drop-ins for Liger-Kernel",
    "torch/huggingface.py": "drop-ins for Hugging Face",
    "torch/vllm.py": "drop-ins for vLLM, and their registration",
    "torch/slapo.py": "drop-ins for slapo",
    "torch/_ops/modules.py": "modules",
    "torch/_ops/gate_modules.py": "modules of gated units",
    "torch/_ops/softmax_modules.py": "modules of softmax and its logarithm",
    "torch/_ops/norm_modules.py": "modules of norms",
    "torch/_ops/dyt_modules.py": "modules of dyt and poly_norm",
    "torch/_ops/loss_modules.py": "modules of losses",
    "jax/nnx.py": "modules",
    "jax/_ops/nnx_gates.py": "modules of gated units",
    "jax/_ops/nnx_norms.py": "modules of norms",
    "torch/_ops/vision/batch_norm_modules.py": "modules of batch norm",
    "torch/_ops/vision/batch_norm_ranks.py": "batch norm over the ranks of a process group",
    "jax/_ops/vision/batch_norm_devices.py": "batch norm, compiled, and over a mesh axis",
    "torch/_ops/vision/layouts.py": "layouts of images, and the compositions of pools",
    "jax/_ops/vision/layouts.py": "layouts of images, and the compositions of pools",
    "jax/_ops/vision/nnx_batch_norm.py": "the module of batch norm",
    "jax/_replaced/trial.py": "trials of a layer on random rows",
    "jax/_ops/post_training/linear_compositions.py": "the same in JAX",
    "jax/_replaced/settings.py": "the settings that a trial holds for",
    "jax/_replaced/norm_forms.py": "the forms of norms",
    "jax/_replaced/mlp_forms.py": "the forms of MLPs",
    "jax/_replaced/function_forms.py": "the forms of activations and losses",
    "jax/_replaced/models.py": "models with replaced layers",
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
        elif isinstance(node, ast.FunctionDef) and is_overload(node):
            lines.difference_update(lines_of(node), lines_of(node.decorator_list[0]))
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node, clean=False
        ):
            lines.difference_update(lines_of(node.body[0]))
    return len(lines - imports), len(lines & imports)


def is_overload(node: ast.FunctionDef) -> bool:
    """True for a signature that only type checkers read."""
    return any(isinstance(each, ast.Name) and each.id == "overload" for each in node.decorator_list)


def lines_of(node: ast.stmt | ast.expr) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


def count_family(family: str) -> tuple[int, int, int, int]:
    """Returns the lines of code of a family: (in torch, in JAX, in both, imports of both)."""
    counts = [count(f"{adapter}/_ops/{family}.py") for adapter in ADAPTERS]
    code, imports = (sum(numbers) for numbers in zip(*counts, strict=True))
    return counts[0][0], counts[1][0], code, imports


def main() -> int:
    too_long = 0
    print(f"{'family':<38} {'torch':>5} {'jax':>5} {'both':>5} {'imports':>8}")
    for family in FAMILIES:
        in_torch, in_jax, code, imports = count_family(family)
        too_long += code >= LIMIT
        print(f"{family:<38} {in_torch:>5} {in_jax:>5} {code:>5} {imports:>8}")
    print("\nbesides")
    for file, what in BESIDES.items():
        code, imports = count(file)
        print(f"{file:<38} {'':>11} {code:>5} {imports:>8}   {what}")
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main())
