"""Faults of bias_gelu and the softmaxes."""

from __future__ import annotations

from .fault import DERIVATIVES, GELU, LAYOUTS, Fault

MASKED = "tests/test_values.py::test_a_fully_masked_row_is_zero"
UNWRITTEN = "tests/test_values.py::test_inputs_are_not_written"
ISAS = "tests/test_bits.py::test_instruction_sets_and_threads"
_SOFTMAX = "cpp/hand_written/softmax_machine.cpp"
_JACOBIAN = "cpp/hand_written/jacobian_kernel.cpp"
_JACOBIAN_LINE = """\
    const Real value = math::softmax_jacobian(to_real<Real>(u[i]), to_real<Real>(v[i]), dot, scale);
"""
_SOFTMAX_RULES = "bridge/catalogue/softmax.py"
_SOFTMAX_PROGRAMS = "bridge/catalogue/softmax_programs.py"
_LINEAR_LOSSES = "bridge/catalogue/linear_rows.py"
_LOSSES_IN_CHUNKS = "tests/catalogue/test_portable_linear_cross_entropy.py::test_many_chunks"

BIAS_GELU = (
    Fault(
        "bias_gelu: every form is the tanh form",
        GELU,
        "return bl.gelu(_plus(x, bias), approximate)",
        'return bl.gelu(_plus(x, bias), "tanh")',
        keyword="bias_gelu",
    ),
    Fault(
        "bias_gelu: bias ignored",
        GELU,
        "else x + bias",
        "else x + 0.0 * bias",
        keyword="bias_gelu",
    ),
    Fault(
        "bias_gelu: bias gradient skipped",
        DERIVATIVES,
        "None if place is None else total(place) for place in halves",
        "None if place is None or operand.role is roles.Row else total(place) for place in halves",
        keyword="bias_gelu",
    ),
    Fault(
        "bias_gelu: derivative order swapped",
        "bridge/lang/operations.py",
        "static=(kind, order + 1))",
        "static=(kind, 2 - order))",
        keyword="bias_gelu",
    ),
    Fault(
        "bias_gelu: tangent of the bias ignored",
        DERIVATIVES,
        "terms = [tangent for tangent in t if tangent is not None]",
        "terms = [tangent for tangent in t if tangent is not None][:1]",
        keyword="bias_gelu",
    ),
    Fault(
        "bias_gelu: NaN at the infinities",
        "cpp/math/gelu_logistic.h",
        "return min_keep_nan(LogisticTable<Real, F>::bound, absolute(h));",
        "return absolute(h);",
        tests="tests/test_values.py::test_limits",
        keyword="float64",
    ),
)

SOFTMAX = (
    Fault(
        "softmax: only the first row of a run is computed",
        _SOFTMAX,
        "run.rows = here_.count;",
        "run.rows = 1;",
        keyword="softmax",
    ),
    Fault(
        "softmax: results whose columns lie apart are not written",
        _SOFTMAX,
        "if (memory_.row[kMostOperands] != nullptr) scatter_result();",
        "",
        tests=LAYOUTS,
        keyword="apart",
    ),
    Fault(
        "softmax: the gradient takes y as the cotangent too",
        _SOFTMAX,
        "now.v = caller.operand(1);",
        "now.v = caller.operand(0);",
        keyword="softmax",
    ),
    Fault(
        "softmax: g overwritten by the backward pass",
        _SOFTMAX,
        "now.v = caller.operand(1);\n    now.output = caller.output();",
        "now.v = now.output = caller.operand(1);",
        tests=UNWRITTEN,
        keyword="softmax",
    ),
    Fault(
        "softmax: mask dropped",
        _SOFTMAX,
        "if (has_mask) now.mask = caller.operand(1);",
        "",
        keyword="softmax",
    ),
    Fault(
        "softmax: scale dropped",
        _SOFTMAX_PROGRAMS,
        "Scale.of(scale, dtype)",
        "Scale.of(1.0, dtype)",
        keyword="softmax",
    ),
    Fault(
        "softmax: two parameters of a call in each other's place",
        "cpp/hand_written/softmax_scale.h",
        """\
  scale->half = static_cast<Real>(parameter(view, 0));
  scale->rate = static_cast<Real>(parameter(view, 1));
""",
        """\
  scale->half = static_cast<Real>(parameter(view, 1));
  scale->rate = static_cast<Real>(parameter(view, 0));
""",
        keyword="softmax",
    ),
    Fault(
        "softmax on CUDA: two parameters of a call in each other's place",
        "cpp/hand_written/softmax_scale.h",
        """\
  scale->half = static_cast<Real>(parameter(view, 0));
  scale->rate = static_cast<Real>(parameter(view, 1));
""",
        """\
  scale->half = static_cast<Real>(parameter(view, 1));
  scale->rate = static_cast<Real>(parameter(view, 0));
""",
        tests="tests/generated/test_emulated.py::test_kernels_written_by_hand[12]",
    ),
    Fault(
        "softmax: scale dropped from the gradient",
        _SOFTMAX,
        "run.scale = parameter(view, 0);",
        "run.scale = 1.0;",
        keyword="softmax",
    ),
    Fault(
        "softmax: last columns of a call are not read",
        _SOFTMAX,
        "if (has_last_) {",
        "if (false) {",
        keyword="causal",
    ),
    Fault(
        "softmax: rows do not see their last column",
        "cpp/hand_written/run_rows.h",
        "smaller(last, run.cols - 1) + 1;",
        "smaller(last, run.cols);",
        keyword="causal",
    ),
    Fault(
        "softmax: in the program, rows do not see their last column",
        _SOFTMAX_PROGRAMS,
        "functions.column() > last",
        "functions.column() >= last",
        keyword="causal",
    ),
    Fault(
        "softmax: torch's diagonal begins at the first key, with fewer or more queries too",
        "bridge/torch/_adapter/arrays.py",
        "torch.arange(keys - queries, keys, ",
        "torch.arange(queries, ",
        keyword="causal and torch",
    ),
    Fault(
        "softmax: JAX's diagonal begins at the first key, with fewer or more queries too",
        "bridge/jax/_adapter/arrays.py",
        "jnp.arange(keys - queries, keys)",
        "jnp.arange(queries)",
        keyword="causal and jax",
    ),
    Fault(
        "softmax: kernels written by hand run programs with other constants",
        "cpp/program/program_key.h",
        "    return is_same(code, from, count);\n",
        "    return true;\n",
        tests="tests/generated/test_hand_written.py::test_other_programs_are_not_taken",
    ),
    Fault(
        "softmax: a fully masked row is uniform",
        "cpp/hand_written/softmax_kernel.cpp",
        "constexpr float kInfinity = __builtin_inff();",
        "constexpr float kInfinity = 1e30f;",
        tests=MASKED,
    ),
    Fault(
        "softmax: mask bytes other than 1 do not hide",
        "cpp/hand_written/softmax_kernel.cpp",
        "              row.mask[i] != 0 ? Real(-kInfinity)",
        "              row.mask[i] == 1 ? Real(-kInfinity)",
        keyword="uint8",
    ),
    Fault(
        "softmax: the gradient of a fully masked row is uniform",
        _JACOBIAN,
        "    const Real value = math::softmax_jacobian(",
        "    const Real value = dot == 0 ? scale * to_real<Real>(v[i]) / Real(count)\n"
        "                                : math::softmax_jacobian(",
        tests=MASKED,
    ),
    Fault(
        "softmax: wide instruction sets round differently",
        _JACOBIAN,
        _JACOBIAN_LINE,
        "#if defined(__AVX2__)\n"
        "    const Real value = scale * to_real<Real>(u[i]) * (to_real<Real>(v[i]) - dot);\n"
        f"#else\n{_JACOBIAN_LINE}#endif\n",
        tests=ISAS,
        keyword="softmax",
    ),
    Fault(
        "softmax: a mask of one batch indexed by batch",
        "cpp/bindings/calls/program_call.cpp",
        "own.shape[d] == 1 ? 0 : strides[d];",
        "strides[d];",
        tests=LAYOUTS,
        keyword="mask",
    ),
    Fault(
        "softmax: powers are not brought to the row's shift",
        _SOFTMAX_PROGRAMS,
        "    magic = where(is_moderate, form.magic - whole, form.magic)\n",
        "    magic = where(is_moderate, form.magic + 0.0 * whole, form.magic)\n",
        tests="tests/test_values.py::test_rows_far_from_zero",
    ),
    Fault(
        "softmax: second order without one of its terms",
        _SOFTMAX_RULES,
        "moved = (True, True, True, False)",
        "moved = (True, True, False, False)",
        keyword="softmax",
    ),
    Fault(
        "softmax: forward mode of the gradient without one of its terms",
        _SOFTMAX_RULES,
        'of_w or kind == "jacobian")',
        "of_w)",
        keyword="softmax and jax",
    ),
    Fault(
        "softmax: terms of the third order do not change places",
        _SOFTMAX_RULES,
        "asked = (product, of_u, of_w, of_v)",
        "asked = (product, of_u, of_v, of_w)",
        tests="tests/jax/test_every_op.py::test_transform_of_a_loss",
        keyword="softmax",
    ),
    Fault(
        "softmax: terms of a derivative have the wrong sign",
        _SOFTMAX_PROGRAMS,
        "functions.fma(-factor, dot, total)",
        "functions.fma(factor, dot, total)",
        keyword="softmax",
    ),
    Fault(
        "softmax: a serialized program loses its family",
        "bridge/lang/codes/texts.py",
        'fields["family"] = list(family)',
        "pass",
        keyword="softmax",
    ),
    Fault(
        "softmax with a sink: the rounding of an exponent is ignored",
        "bridge/catalogue/sinks.py",
        "-math.inf), 2.0 * lacks)",
        "-math.inf), 0.0 * lacks)",
        tests="tests/catalogue/test_sinks.py",
        keyword="accurate",
    ),
    Fault(
        "softmax with a sink: two derivatives where the largest logits are equal",
        "bridge/catalogue/sinks.py",
        "_exp(bl.where(is_above, -above, 0.0), bl.where(",
        "_exp(bl.minimum(-above, 0.0), bl.where(",
        tests="tests/catalogue/test_sinks.py",
        keyword="equal",
    ),
    Fault(
        "cross_entropy: ignored rows counted in the mean",
        "bridge/catalogue/cross_entropy.py",
        "bl.where(labels == ignore_index, 0.0, 1.0)",
        "bl.where(labels == ignore_index, 1.0, 1.0)",
        tests="tests/catalogue/test_cross_entropy.py",
        keyword="values_and_gradients and mean",
    ),
    Fault(
        "cross_entropy: the label after the last column is accepted",
        "cpp/bindings/python/label_range.cpp",
        "label < columns",
        "label <= columns",
        tests="tests/catalogue/test_cross_entropy.py",
        keyword="labels_of_any_dtype",
    ),
    Fault(
        "cross_entropy on a named axis: cotangents without check_vma are divided twice",
        "bridge/jax/_adapter/primitive.py",
        "shares = jax.lax.axis_size(axis)",
        "shares = 2 * jax.lax.axis_size(axis)",
        tests="tests/jax/test_split_vocabulary.py",
        keyword="second_order",
    ),
    Fault(
        "linear_cross_entropy: the weight's gradient comes from one chunk only",
        "bridge/torch/_adapter/linear_losses.py",
        "total.add_(d.t()",
        "total.zero_().add_(d.t()",
        tests="tests/catalogue/test_linear_cross_entropy.py",
        keyword="values_and_gradients and torch",
    ),
    Fault(
        "linear_cross_entropy: a chunk of bridge's products is no subtree",
        _LINEAR_LOSSES,
        "per = max(1 << per.bit_length() - 1, LEAF)",
        "per = max(per, LEAF)",
        tests=_LOSSES_IN_CHUNKS,
    ),
    Fault(
        "linear_cross_entropy: sums over chunks wait as if all had one size",
        _LINEAR_LOSSES,
        "total.push(each, chunks.count)",
        "total.push(each, 1)",
        tests=_LOSSES_IN_CHUNKS,
    ),
    Fault(
        "linear_cross_entropy: the chunk's sums are rounded before they are added",
        _LINEAR_LOSSES,
        "return self.dtype if is_whole else wide(self.dtype)",
        "return self.dtype",
        tests=_LOSSES_IN_CHUNKS,
        keyword="bfloat16",
    ),
    Fault(
        "linear_cross_entropy: the bias is added after the rounding",
        _LINEAR_LOSSES,
        "functions.product(hidden[-1], weight, bias, params)",
        "functions.product(hidden[-1], weight, None, params) + bias[..., None, :]",
        tests=_LOSSES_IN_CHUNKS,
        keyword="bfloat16",
    ),
)
