"""Faults of attention, optimizers, replaced layers and `invariant`."""

from __future__ import annotations

from .fault import Fault

_VISION = "tests/vision_models/test_models.py::test_no_number_differs_after_steps"
_ATTENTION = "bridge/catalogue/attention.py"
_CHUNKS = "bridge/catalogue/attention_chunks.py"
_SCORES = "bridge/catalogue/attention_scores.py"
_IN_CHUNKS = "tests/attention/test_order.py::test_chunk_sizes"

ATTENTION = (
    Fault(
        "attention: heads of DTensors stay split where their key head is on every process",
        "bridge/torch/_sharded/attention.py",
        "(*q.shape[:-3], k.shape[-3])",
        "(*q.shape[:-3], q.shape[-3])",
        tests="tests/distributed/test_attention_of_dtensors.py::test_bits_of_the_whole",
        keyword="more",
    ),
    Fault(
        "attention: a query sees one key more",
        _SCORES,
        "(case.keys - case.queries - chunks.first)",
        "(case.keys - case.queries - chunks.first + 1)",
        tests="tests/attention/test_attention.py::test_same_bits_and_reference",
        keyword="causal",
    ),
    Fault(
        "attention: a window has one key more",
        _SCORES,
        "before = keys <= (last - case.options.window)[:, None]",
        "before = keys < (last - case.options.window)[:, None]",
        tests="tests/attention/test_attention.py::test_same_bits_and_reference",
        keyword="window",
    ),
    Fault(
        "attention: a hidden key enters the sum of values",
        _ATTENTION,
        "transposed_a, skips_zeros=True)",
        "transposed_a, skips_zeros=False)",
        tests="tests/attention/test_order.py::test_hidden_places_of_a_cache",
    ),
    Fault(
        "attention: the probabilities are not rounded to the dtype of q",
        _ATTENTION,
        "p, v = self._rounded(scores.probabilities, case), part[2]",
        "p, v = scores.probabilities, part[2]",
        tests="tests/attention/test_order.py::test_probabilities_are_rounded_to_the_dtype_of_q",
    ),
    Fault(
        "attention: the keys of a window begin at no subtree",
        _CHUNKS,
        "    return first // unit * unit",
        "    return first // _UNIT * _UNIT",
        tests="tests/attention/test_order.py::test_chunks_hold_all_rows_and_the_keys_that_they_see",
    ),
    Fault(
        "attention: the sums of chunks are added without a second carry",
        "bridge/ops/compositions.py",
        "while self._waiting and (not self._is_tree or self._waiting[-1][0] == count):",
        "if self._waiting and (not self._is_tree or self._waiting[-1][0] == count):",
        tests=_IN_CHUNKS,
        keyword="plain",
    ),
    Fault(
        "attention: a chunk has rows that are no multiple of a leaf",
        _CHUNKS,
        "bit_length() - 1, LEAF)",
        "bit_length() - 1, 100)",
        tests="tests/attention/test_order.py::test_sums_over_queries_have_the_order_of_one_product",
    ),
    Fault(
        "attention: the chunk's sums are rounded before they are added",
        _SCORES,
        "return self.dtype if is_whole else self.wide",
        "return self.dtype",
        tests=_IN_CHUNKS,
        keyword="bfloat16",
    ),
    Fault(
        "attention: a cap has no part in the gradient",
        _SCORES,
        "g * ((1.0 - t * t) * scale))",
        "g * scale)",
        tests="tests/attention/test_attention.py::test_same_bits_and_reference",
        keyword="softcap",
    ),
)

_LINEAR_FORMS = "bridge/torch/_drop_ins/huggingface/linear_forms.py"
_OF_MODELS = "tests/torch/test_huggingface_linear.py"

REPLACED_PRODUCTS = (
    Fault(
        "replace: a linear layer is torch's own",
        _LINEAR_FORMS,
        "return linear(x, layer.weight, layer.bias)",
        "return nn.functional.linear(x, layer.weight, layer.bias)",
        tests="tests/cross/test_zero_log_ratio.py::test_generate_and_a_training_step_of_a_llama",
        keyword="float32",
    ),
    Fault(
        "replace: the row of padding has a gradient",
        _LINEAR_FORMS,
        "y.detach(), y)",
        "y, y)",
        tests=f"{_OF_MODELS}::test_a_layer_has_the_bits_of_its_op",
    ),
    Fault(
        "replace: a subclass with another forward is a linear layer",
        _LINEAR_FORMS,
        "    return forms.get(forward)",
        "    return forms.get(forward) or (_LINEAR if isinstance(layer, nn.Linear) else None)",
        tests=f"{_OF_MODELS}::test_layers_that_stay_and_the_reasons",
    ),
    Fault(
        "replace: a head with a loss has torch's logits",
        "bridge/torch/_drop_ins/huggingface/linear_loss.py",
        "class HeadOnBridge(HeadWithLoss, Linear):",
        "class HeadOnBridge(HeadWithLoss):",
        tests=f"{_OF_MODELS}::test_with_a_loss_without_logits",
    ),
    Fault(
        "replace: a batch norm of Flax keeps Flax's rule of the running variance",
        "bridge/jax/_replaced/layer_forms.py",
        'return _UNBIASED if unbiased and form.name == "batch_norm" else form',
        "return form",
        tests=_VISION,
        keyword="ResNet",
    ),
    Fault(
        "replace: a group norm is torch's own",
        "bridge/torch/_drop_ins/module_forms.py",
        "return group_norm(input, layer.num_groups, layer.weight, layer.bias, eps=layer.eps)",
        "return nn.GroupNorm.forward(layer, input)",
        tests=_VISION,
        keyword="U-Net",
    ),
)

_INVARIANT = "bridge/torch/_invariant"

INVARIANT = (
    Fault(
        "invariant: silu in place differentiates the input that it overwrites",
        f"{_INVARIANT}/forms.py",
        "_silu, input.clone())",
        "_silu, input)",
        tests="tests/torch/test_invariant.py::test_in_place_of_a_recorded_tensor",
    ),
    Fault(
        "invariant: gelu returns another layout than torch",
        f"{_INVARIANT}/forms.py",
        "return _owned(op(x.permute(order)).permute(back))",
        "return _owned(op(x))",
        tests="tests/torch/test_invariant.py::test_layouts_are_those_of_torch",
        keyword="gelu",
    ),
    Fault(
        "invariant: the eps of rms_norm is of the input's dtype",
        f"{_INVARIANT}/forms.py",
        "torch.finfo(torch.float64 if is_double else torch.float32).eps",
        "torch.finfo(input.dtype).eps",
        tests="tests/torch/test_invariant.py::test_a_form_has_the_bits_of_bridges_op",
        keyword="torch.rms_norm",
    ),
    Fault(
        "invariant: backward passes run without the context",
        f"{_INVARIANT}/table.py",
        "return found | {function: _opened(function) for function in backward}",
        "return found",
        tests="tests/torch/test_invariant_models.py::test_layers_that_the_backward_pass_computes_once_more",
    ),
    Fault(
        "invariant: a label out of range has no error",
        f"{_INVARIANT}/losses.py",
        'check_labels("cross_entropy", target, input, columns, ignore_index)',
        "pass",
        tests="tests/torch/test_invariant_passing.py::test_errors_are_torchs_own",
        keyword="label",
    ),
    Fault(
        "invariant: smoothing forgets the weights of the columns",
        "bridge/catalogue/framework_functions.py",
        "(logits - largest)) * weight)",
        "(logits - largest)))",
        tests="tests/torch/test_invariant.py::test_cross_entropy",
        keyword="weights",
    ),
    Fault(
        "invariant: a function of JAX keeps the exchanged code",
        "bridge/jax/_invariant/context.py",
        "self.function.__code__ = self.original.__code__",
        "pass",
        tests="tests/jax/test_invariant.py::test_the_context_holds_for_its_thread_and_restores_the_functions",
    ),
    Fault(
        "invariant: a weak type of JAX becomes a strong one",
        "bridge/jax/_invariant/forms.py",
        "if jax.typeof(x).weak_type else None",
        "if False else None",
        tests="tests/jax/test_invariant.py::test_a_call_that_passes_by_is_jaxs_own_and_named",
        keyword="weak",
    ),
)

_OPTIMIZERS = "bridge/catalogue/optimizers.py"
_CLIPPING = "tests/optim/test_clipping.py"
_ADAMW_STEP = "tests/optim/test_accuracy.py::test_a_step_of_adamw"
_OPTIMIZER_BITS = "tests/optim/test_bits.py::test_weights_and_state_after_several_steps"

OPTIMIZERS = (
    Fault(
        "AdamW: bias corrections are one step off",
        _OPTIMIZERS,
        "return -bl.expm1(step * bl.log1p(-(1.0 - b)))",
        "return -bl.expm1((step + 1) * bl.log1p(-(1.0 - b)))",
        tests=_ADAMW_STEP,
    ),
    Fault(
        "AdamW: a power of beta is subtracted from 1",
        _OPTIMIZERS,
        "return -bl.expm1(step * bl.log1p(-(1.0 - b)))",
        "return 1.0 - bl.exp(step * bl.log1p(-(1.0 - b)))",
        tests="tests/optim/test_accuracy.py::test_corrections_of_the_first_steps_have_no_cancellation",
    ),
    Fault(
        "AdamW: eps is inside the root",
        _OPTIMIZERS,
        "(bl.sqrt(v / _correction(step, b2)) + eps)",
        "bl.sqrt(v / _correction(step, b2) + eps)",
        tests=_ADAMW_STEP,
    ),
    Fault(
        "AdamW: an update is rounded to the parameter's 16 bits",
        _OPTIMIZERS,
        "first = _like(-change, m) if returns_update else _like(p - change, p)",
        "first = _like(-change if returns_update else p - change, p)",
        tests=_OPTIMIZER_BITS,
        keyword="adamw and float16 or adamw and bfloat16",
    ),
    Fault(
        "SGD: the first gradient is dampened",
        _OPTIMIZERS,
        "return bl.where(step <= 1, d, momentum * buffer + (1.0 - dampening) * d)",
        "return bl.where(step <= 0, d, momentum * buffer + (1.0 - dampening) * d)",
        tests="tests/optim/test_accuracy.py::test_several_steps_are_those_of_torch",
        keyword="momentum",
    ),
    Fault(
        "clip_grad_norm_: tensors with names keep their order",
        "bridge/torch/_ops/clipping.py",
        "return sorted(pairs, key=lambda pair: pair[0]) if has_names else pairs",
        "return pairs",
        tests=_CLIPPING,
        keyword="order",
    ),
    Fault(
        "clip_by_global_norm: arrays keep their order",
        "bridge/jax/_ops/clipping.py",
        "sorted(leaves.named(), key=lambda pair: pair[0])",
        "leaves.named()",
        tests=_CLIPPING,
        keyword="order",
    ),
    Fault(
        "clipping: a part without a partner is the first of the next level",
        _OPTIMIZERS,
        "arrays.concatenated(added, nodes[-1:])",
        "arrays.concatenated(nodes[-1:], added)",
        tests=_CLIPPING,
        keyword="subtrees",
    ),
    Fault(
        "bridge.torch.optim: the state of 16-bit parameters is rounded when it is loaded",
        "bridge/torch/optim.py",
        "if p.dtype in (torch.float16, torch.bfloat16):",
        "if False:",
        tests="tests/optim/test_torch_optimizers.py::test_a_state_goes_through_a_file",
        keyword="bfloat16",
    ),
)
