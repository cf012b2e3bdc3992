"""The faults that check_faults.py plants: their places, and the tests that must detect them.

Calls from torch and JAX share the binding of a call (cpp/bindings): a fault there changes both
frameworks alike, so only a comparison with a reference can detect it.
"""

from __future__ import annotations

from dataclasses import dataclass

VALUES = "tests/test_values.py::test_value_and_derivatives"
MASKED = "tests/test_values.py::test_a_fully_masked_row_is_zero"
LAYOUTS = "tests/test_native.py"
UNWRITTEN = "tests/test_values.py::test_inputs_are_not_written"
ISAS = "tests/test_bits.py::test_instruction_sets_and_threads"
DENORMALS = "tests/test_bits.py::test_denormals_survive_every_floating_point_mode"
COLUMN_TREE = "tests/test_bits.py::test_bias_gradient_follows_the_tree"
ROW_TREE = "tests/test_bits.py::test_softmax_gradient_follows_the_tree"
_DECLARED = "tests/declared/test_transforms.py"
_LONG_ROWS = "tests/generated/test_long_rows.py::test_any_number_of_threads"
_LARGEST = "tests/generated/test_bits.py::test_what_equals_the_largest_of_a_row"


@dataclass(frozen=True)
class Fault:
    """An edit of one place.

    Attributes:
      name: a description of the fault.
      file, original, planted: the place, which contains `original` exactly once, and its
        replacement.
      tests: the test, or a file of tests, that must detect the fault.
      keyword: the argument of pytest's -k: selects the tests about the faulty part.
    """

    name: str
    file: str
    original: str
    planted: str
    tests: str = VALUES
    keyword: str = ""


_GELU = "bridge/catalogue/bias_gelu.py"
_DERIVATIVES = "bridge/lang/derivatives/modes.py"
_SOFTMAX = "cpp/hand_written/softmax_machine.cpp"
_JACOBIAN = "cpp/hand_written/jacobian_kernel.cpp"
_JACOBIAN_LINE = """\
    const Real value = math::softmax_jacobian(to_real<Real>(u[i]), to_real<Real>(v[i]), dot, scale);
"""
_SOFTMAX_RULES = "bridge/catalogue/softmax.py"
_SOFTMAX_PROGRAMS = "bridge/catalogue/softmax_programs.py"
_DROPOUT = "bridge/catalogue/bias_dropout_add.py"
_LINEAR_LOSSES = "bridge/catalogue/linear_cross_entropy.py"
_LOSSES_IN_CHUNKS = "tests/catalogue/test_portable_linear_cross_entropy.py::test_many_chunks"

BIAS_GELU = (
    Fault(
        "bias_gelu: every form is the tanh form",
        _GELU,
        "return bl.gelu(_plus(x, bias), approximate)",
        'return bl.gelu(_plus(x, bias), "tanh")',
        keyword="bias_gelu",
    ),
    Fault(
        "bias_gelu: bias ignored",
        _GELU,
        "else x + bias",
        "else x + 0.0 * bias",
        keyword="bias_gelu",
    ),
    Fault(
        "bias_gelu: bias gradient skipped",
        _DERIVATIVES,
        "found = None if place is None else total(place)",
        "found = None if place is None or operand.role is roles.Row else total(place)",
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
        _DERIVATIVES,
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
        "return self.dtype if is_whole else _wide(self.dtype)",
        "return self.dtype",
        tests=_LOSSES_IN_CHUNKS,
        keyword="bfloat16",
    ),
    Fault(
        "linear_cross_entropy: the bias is added after the rounding",
        _LINEAR_LOSSES,
        "(self._functions.product(hidden, weight, bias, params), labels)",
        "(self._functions.product(hidden, weight, None, params) + bias[..., None, :], labels)",
        tests=_LOSSES_IN_CHUNKS,
        keyword="bfloat16",
    ),
)

BIAS_DROPOUT_ADD = (
    Fault(
        "bias_dropout_add: bias ignored",
        _DROPOUT,
        "else x + bias",
        "else x + 0.0 * bias",
        keyword="dropout",
    ),
    Fault(
        "bias_dropout_add: residual dropped",
        _DROPOUT,
        "else residual + h",
        "else 0.0 * residual + h",
        keyword="dropout",
    ),
    Fault(
        "bias_dropout_add: bias gradient skipped",
        _DERIVATIVES,
        "found = None if place is None else total(place)",
        "found = None if place is None or operand.role is roles.Row else total(place)",
        keyword="dropout",
    ),
    Fault(
        "bias_dropout_add: another operand's cotangent passed on",
        "bridge/lang/codes/properties.py",
        "found.append(sources[node.static[0]] if is_it else None)",
        'found.append(("cotangent", 0))',
        keyword="dropout",
    ),
    Fault(
        "bias_dropout_add: offset ignored",
        _DROPOUT,
        "0 if offset is None else offset",
        "0",
        keyword="dropout",
    ),
    Fault(
        "bias_dropout_add: batches use each other's seeds",
        "cpp/bindings/calls/program_call.cpp",
        "fits = lead(0, batch_ndim_, 0);",
        "fits = true;",
        tests=LAYOUTS,
        keyword="draws",
    ),
    Fault(
        "a result takes the place of an operand that is read later",
        "cpp/bindings/calls/program_call.cpp",
        "(stored & (in.b == 0 ? 1 : 2)) != 0",
        "(stored & (in.b == 0 ? 1 : 2)) > 2",
        tests=LAYOUTS,
        keyword="read_later",
    ),
    Fault(
        "bias_dropout_add: one threshold for every p",
        "cpp/generated/cpu/machine_values.h",
        "last_dropped(view.constants, P::threshold(i))",
        "1u << 29",
        tests="tests/generated/test_bits.py::test_numbers_are_read_from_a_call",
    ),
    Fault(
        "bias_dropout_add: Philox counter off by one",
        "cpp/cpu/random_words.h",
        "const uint64_t group = first_ / 4;",
        "const uint64_t group = first_ / 4 + 1;",
        keyword="dropout",
    ),
    Fault(
        "bias_dropout_add: p quantised to 8 bits",
        "bridge/lang/philox.py",
        "return round(p * 2.0**32)",
        "return round(p * 2.0**8) << 24",
        keyword="dropout",
    ),
    Fault(
        "bias_dropout_add: words of JAX's seeds in the wrong order",
        "bridge/jax/_adapter/integers.py",
        "[value & 0xFFFFFFFF, value >> 32]",
        "[value >> 32, value & 0xFFFFFFFF]",
        keyword="dropout and jax",
    ),
    Fault(
        "bias_dropout_add: kept elements are not scaled",
        _DROPOUT,
        "1.0 / (1.0 - p) if p < 1.0 else 0.0",
        "1.0",
        keyword="dropout",
    ),
)

# Headers of every op come last: restoring them compiles much again for the next fault.
SHARED = (
    Fault(
        "a row's chunks added in another order",
        "cpp/drivers/rows/row_sums.h",
        "for (int64_t bits = chunks_++; bits & 1; bits >>= 1) chunk",
        "if (chunks_++ > 0) chunk",
        tests=ROW_TREE,
    ),
    Fault(
        "MXCSR guard removed",
        "cpp/cpu/float_environment.h",
        "if (saved_ != kIeee) _mm_setcsr(kIeee);",
        "",
        tests=DENORMALS,
    ),
    Fault(
        "one lane of the tree of column sums moved",
        "cpp/drivers/columns/column_sum_tree.h",
        "constexpr int64_t kLeafRows = 16;",
        "constexpr int64_t kLeafRows = 32;",
        tests=COLUMN_TREE,
    ),
)

# Faults in Python, each in one framework alone.
_TORCH_GRADIENTS = (
    "tests/distributed/test_torch_all_gather.py::test_gradients[2-ranks-1-tiled-float32-contiguous]"
)
_JAX_GRADIENTS = "tests/jax/test_all_gather.py::test_values_and_gradients[1-float32-True-True"

MANY_DEVICES = (
    Fault(
        "torch all_gather: another rank's slice under local",
        "bridge/torch/_collectives/all_gather.py",
        "g.narrow(dim, ranks.rank * size, size)",
        "g.narrow(dim, 0, size)",
        tests=_TORCH_GRADIENTS,
    ),
    Fault(
        "torch all_gather: sum instead of mean",
        "bridge/torch/_collectives/all_gather.py",
        'return part / exchange.ranks.size if exchange.rule == "mean" else part',
        "return part",
        tests=_TORCH_GRADIENTS,
    ),
    Fault(
        "torch all_gather: lazy conjugates are sent without conjugation",
        "bridge/torch/_collectives/transport.py",
        "        x = x.resolve_conj().resolve_neg()\n",
        "        pass\n",
        tests="tests/distributed/test_torch_all_gather.py::test_all_gather[2-ranks-strided_inputs]",
    ),
    Fault(
        "torch all_gather: no tangent",
        "bridge/torch/_collectives/all_gather.py",
        "return differentiable_gather(tangent, ctx.exchange)",
        "return differentiable_gather(0 * tangent, ctx.exchange)",
        tests="tests/distributed/test_torch_transforms.py::test_forward_mode[2-ranks-1-True]",
    ),
    Fault(
        "JAX all_gather: another shard's slice under local",
        "bridge/jax/_collectives/all_gather.py",
        "own = lax.axis_index(names)\n",
        "own = 0 * lax.axis_index(names)\n",
        tests=f"{_JAX_GRADIENTS}-local]",
    ),
    Fault(
        "JAX all_gather: sum instead of mean",
        "bridge/jax/_collectives/all_gather.py",
        '(total / size if grad == "mean" else total)',
        "total",
        tests=f"{_JAX_GRADIENTS}-mean]",
    ),
    Fault(
        "JAX all_gather: processes with different arguments are not detected",
        "bridge/jax/_collectives/agreement.py",
        "        if fault is not None:\n",
        "        if False:\n",
        tests="tests/distributed/test_jax_all_gather.py::test_ranks_that_differ_are_all_told[axis]",
    ),
    Fault(
        "torch DTensors: each shard counts elements from 0",
        "bridge/torch/_sharded/shards.py",
        "start += split.index(dim) * local * stride[dim]",
        "start += 0",
        tests="tests/distributed/test_dtensor.py::test_bits_of_the_whole[mesh0-dims0-float32]",
    ),
    Fault(
        "JAX sharded arrays: each shard counts elements from 0",
        "bridge/jax/_sharded/shards.py",
        "own = word_pairs.times(self.split.index(dim), local * stride[dim])",
        "own = word_pairs.times(self.split.index(dim), 0)",
        tests="tests/jax/test_sharded_jit.py::test_one_mask_for_any_number_of_shards",
    ),
)

DECLARED = (
    Fault(
        "declared ops: the gradient of a subtrahend has the wrong sign",
        "bridge/lang/derivatives/modes.py",
        "        return [g, -g]\n",
        "        return [g, g]\n",
        tests=f"{_DECLARED}::test_derivatives_are_those_of_the_function[layer_norm]",
    ),
    Fault(
        "declared ops: reverse mode uses the program of forward mode",
        "bridge/lang/codes/properties.py",
        'if "jvp" not in fields or any(name != "tangent" for name, _ in chosen):',
        "if True:",
        tests=f"{_DECLARED}::test_same_bits_to_the_second_order",
        keyword="functions",
    ),
    Fault(
        "declared ops: a table's cotangent in the order of the space",
        "bridge/ops/tables.py",
        "ordered = permute(full, (*kept, *rows, last))",
        "ordered = full",
        tests="tests/distributed/test_dtensor.py::test_bits_of_the_whole[mesh0-dims0-float32]",
    ),
    Fault(
        "declared ops: shards keep the number of their own first element",
        "bridge/lang/codes/properties.py",
        'return any(node.operation == "keep" for node in program.nodes)',
        "return False",
        tests=f"{_DECLARED}::test_sharded_jit",
        keyword="dropped",
    ),
    Fault(
        "declared ops: a program of a later version is read as one of today",
        "bridge/lang/codes/texts.py",
        "if version > VERSION:",
        "if version > VERSION + 1:",
        tests="tests/exported/test_exported.py::test_a_later_version_is_named",
    ),
    Fault(
        "declared ops: two dtypes have each other's number",
        "bridge/lang/dtypes.py",
        """\
    "int8": Dtype("int8_t", 1),
    "int16": Dtype("int16_t", 2),
""",
        """\
    "int16": Dtype("int16_t", 2),
    "int8": Dtype("int8_t", 1),
""",
        tests="tests/test_tables.py::test_numbers_of_dtypes",
    ),
    Fault(
        "declared ops: parts of the columns count them from 0",
        "bridge/lang/stages.py",
        'return builder.apply("add", column, builder.operand(first, 0, 0, "int"))',
        "return column",
        tests="tests/jax/test_split_columns.py::test_a_shared_chunk_is_sent_as_its_terms",
    ),
    Fault(
        "declared ops: a chunk shared by parts of the columns is added in another's place",
        "bridge/ops/columns.py",
        "            flat = part.taken(flat, self.order)\n",
        "            flat = part.taken(flat, self.order[::-1])\n",
        tests="tests/declared/test_sums_of_parts.py::test_bits_and_numbers_that_are_sent",
    ),
    Fault(
        "declared ops: an array of two halves has the columns of one",
        "bridge/torch/_adapter/kernels.py",
        "Role.HALVES: 2 * whole",
        "Role.HALVES: whole",
        tests="tests/declared/test_results.py::test_made_as_documented",
    ),
    Fault(
        "nodes: unneeded gradients are computed",
        "cpp/bindings/torch/backward.h",
        "uint64_t{context.needs_input_grad(i)} << i",
        "uint64_t{1} << i",
        tests="tests/torch/test_nodes.py::test_what_is_not_asked_for_is_not_computed",
    ),
    Fault(
        "nodes: the negative bit of memory is ignored",
        "cpp/bindings/torch/functions.h",
        "own.is_neg() || ",
        "",
        tests="tests/torch/test_layouts.py",
    ),
    Fault(
        "programs: a row of several pieces is summed without its last one",
        "cpp/tiles/reductions.h",
        "|| col + count == cols) ",
        "|| col + count > cols) ",
        tests="tests/declared/test_reductions.py::test_sums_follow_the_trees",
    ),
    Fault(
        "programs: a part of a long row is no power of two of chunks",
        "cpp/interpreter/interpreter.cpp",
        "4 * tasks) cols *= 2;",
        "4 * tasks) cols += kSumChunk;",
        tests=f"{_LONG_ROWS}[float32-1x70001-side by side]",
    ),
    Fault(
        "programs: rows that a thread adds up are no power of two of leaves",
        "cpp/interpreter/interpreter.cpp",
        "parts) node_leaves /= 2;",
        "parts) --node_leaves;",
        tests=f"{_LONG_ROWS}[float32-700x300-side by side]",
    ),
    Fault(
        "programs: argmax takes the last of equal numbers in parts of a long row",
        "cpp/tiles/reductions.h",
        "|| here <= before) return;\n    largest = part.largest;",
        "|| here < before) return;\n    largest = part.largest;",
        tests=f"{_LONG_ROWS}[float32-1x131072-side by side]",
    ),
    Fault(
        "compiled programs: only the first chunk with a row's largest number is used",
        "cpp/tiles/reductions.h",
        "largest = order, range.last = from.last;",
        "largest = order, range.last = range.first;",
        tests=f"{_LARGEST}[3072-counted-bfloat16]",
    ),
    Fault(
        "compiled programs: -0 counts as less than a largest number of +0",
        "cpp/tiles/reductions.h",
        "(largest == 0 ? size : all)",
        "(largest == 0 ? all : all)",
        tests=f"{_LARGEST}[3072-counted-float32]",
    ),
    Fault(
        "compiled programs on CUDA: elements equal to a row's largest number are added too",
        "cpp/generated/cuda/sums.cuh",
        "if (kSetsApart && is_largest) x.put_lowest(q, e);",
        "if (kSetsApart && !is_largest) x.put_lowest(q, e);",
        tests="tests/generated/test_emulated.py::test_what_equals_the_largest_of_a_row"
        "[counted-float32]",
    ),
    Fault(
        "compiled programs on CUDA: the neighbour of a row's label column differs",
        "cpp/generated/cuda/streams.cuh",
        "const bool is_second = chosen % 2 != 0;",
        "const bool is_second = chosen % 2 == 0;",
        tests="tests/generated/test_emulated.py::test_what_differs_in_one_column[bfloat16]",
    ),
    Fault(
        "compiled programs: the formula of one column is the formula of the others",
        "bridge/lang/emission/cpu_sections.py",
        "if (own >= 0) y{stream}[own] = own{stream};",
        "if (own > 0) y{stream}[own] = own{stream};",
        tests="tests/generated/test_bits.py::test_what_differs_in_one_column[1024-float32]",
    ),
    Fault(
        "compiled programs: a derivative of GELU is finished from the start of its value",
        "bridge/lang/operations.py",
        'f"{_GELU[kind]}_{shared}" if shared else _GELU[kind],',
        "_GELU[kind],",
        tests="tests/generated/test_starts.py::test_the_bits_are_those_of_one_loop[1024-float32]",
    ),
    Fault(
        "compiled programs: constant rows count as the other rows",
        "bridge/lang/emission/sections.py",
        "[1 if self.holds else 2]",
        "[2 if self.holds else 1]",
        tests="tests/generated/test_bits.py::test_rows_of_constants[1024-float32]",
    ),
    Fault(
        "16-bit types: the label's column of a softmax's gradient is as rough as the others",
        "bridge/lang/codes/narrowing.py",
        '_PASSES = {"mul"',
        '_PASSES = {"add": (0, 1), "mul"',
        tests="tests/lang/test_narrowing.py::test_gradients_of_log_sums",
    ),
    Fault(
        "compiled programs: every part of a long row has the column sums of its first part",
        "cpp/generated/cpu/row_driver.h",
        "stacks_[s].part(part.begin, part.end); });",
        "stacks_[s].part(0, split_.cols); });",
        tests=f"{_LONG_ROWS}[float32-19x70001-side by side]",
    ),
    Fault(
        "compiled programs: every part of a long row is reduced as its first one",
        "cpp/generated/cpu/row_driver.h",
        "reductions_[r].take_part(in.operation, memory_.part_of_row(i, r, part));",
        "reductions_[r].take_part(in.operation, memory_.part_of_row(i, r, 0));",
        tests=f"{_LONG_ROWS}[float32-1x70001-side by side]",
    ),
    Fault(
        "programs: short rows of one piece are summed from the first row",
        "cpp/tiles/reductions.h",
        "    const Real* from = x + i * cols;\n",
        "    const Real* from = x;\n",
        tests=f"{_DECLARED}::test_forward_mode_and_vmap",
        keyword="row_dot",
    ),
    Fault(
        "compiled programs: the last columns of a row are numbered from its beginning",
        "cpp/generated/cpu/row_driver.h",
        "      places.col += whole;\n",
        "",
        tests="tests/generated/test_bits.py::test_declared_ops[cross_entropy-float32]",
    ),
    Fault(
        "compiled programs: all rows have the labels of the first rows",
        "cpp/tiles/position.h",
        "    if (has_rows()) index[call.dims - 1] += rows;\n",
        "",
        tests="tests/generated/test_bits.py::test_declared_ops[cross_entropy-float32]",
    ),
    Fault(
        "compiled programs: taken for calls on arrays of other dtypes",
        "cpp/program/program_key.h",
        "!= dtypes[static_cast<size_t>(i)])",
        "== -2)",
        tests="tests/generated/test_bits.py::test_calls_take_what_was_compiled",
    ),
    Fault(
        "compiled programs on CUDA: the last quarter of a chunk is left out of its sum",
        "cpp/generated/cuda/sums.cuh",
        "      if (k == 3) part_[s][e] = part_[s][e] + half_[e];\n",
        "      if (k == 2) part_[s][e] = part_[s][e] + half_[e];\n",
        tests="tests/generated/test_emulated.py::test_declared_ops[rms_norm-float32]",
    ),
    Fault(
        "compiled programs on CUDA: a warp with several chunks of a row leaves some of them out",
        "cpp/drivers/rows/row_tree.cuh",
        "for (int bit = 1; bit < kChunks; bit *= 2) sum = sum + exchange(sum, bit);",
        "for (int bit = 1; bit < kChunks; bit *= 4) sum = sum + exchange(sum, bit);",
        tests="tests/generated/test_emulated.py::test_declared_ops[layer_norm-bfloat16]",
    ),
    Fault(
        "compiled programs on CUDA: the chunks of a warp take each other's place in shared memory",
        "cpp/generated/cuda/row_loops.cuh",
        "return (turn * static_cast<int>(warps) + warp) * P::kHeld;",
        "return warp * P::kHeld;",
        tests="tests/generated/test_emulated.py::test_declared_ops[layer_norm-bfloat16]",
    ),
    Fault(
        "compiled programs on CUDA: the compiler may use other numbers of registers",
        "bridge/lang/emission/cuda.py",
        '"int kMinBlocks": 1 if self.real_bytes == 8 else 2,',
        '"int kMinBlocks": 1,',
        tests="tests/lang/snapshots/test_snapshots.py::test_the_emitters_write_the_stored_texts",
    ),
    Fault(
        "compiled programs on CUDA: threads without a column add old values",
        "cpp/generated/cuda/sums.cuh",
        "value[e] = is_in ? x : Real(-0.0);",
        "value[e] = x;",
        tests="tests/generated/test_emulated.py::test_declared_ops[log_softmax-float32]",
    ),
    Fault(
        "compiled programs on CUDA: a block of a cluster sends its result only to itself",
        "cpp/generated/cuda/row_loops.cuh",
        "simt::store_in_cluster(own, lane_, found);",
        "simt::store_in_cluster(own, simt::cluster_rank(), found);",
        tests="tests/generated/test_emulated.py::test_declared_ops[rms_norm-float32]",
    ),
    Fault(
        "compiled programs on CUDA: a reduction overwrites the previous one's result",
        "cpp/generated/cuda/row_loops.cuh",
        "area_ ^= 1;",
        "area_ = 0;",
        tests="tests/generated/test_emulated.py::test_declared_ops[log_softmax-float32]",
    ),
    Fault(
        "compiled programs on CUDA: blocks of a cluster do not wait until all have begun",
        "cpp/generated/cuda/row_loops.cuh",
        "if (!is_cluster() || has_joined_) return;",
        "if (is_cluster() || has_joined_) return;",
        tests="tests/generated/test_emulated.py::test_declared_ops[rms_norm-float32]",
    ),
    Fault(
        "compiled programs on CUDA: every constant of a call is its first",
        "cpp/generated/cuda/launch.cu",
        "memcpy(&constant.number, call.code + kHeaderWords + 2 * i, sizeof constant.number);",
        "memcpy(&constant.number, call.code + kHeaderWords + 0 * i, sizeof constant.number);",
        tests="tests/generated/test_emulated.py::test_bias_dropout_add[0.1-float32]",
    ),
    Fault(
        "compiled programs on CUDA: threads after the last row of a leaf add it again",
        "cpp/generated/cuda/row_driver.cuh",
        "if (kIsShort && !has_row_) return;",
        "if (kIsShort && space_.rows < 0) return;",
        tests="tests/generated/test_emulated.py::test_declared_ops[layer_norm-float64]",
    ),
    Fault(
        "compiled programs on CUDA: vectors of a weight take each other's place in shared memory",
        "cpp/generated/cuda/row_driver.cuh",
        "each_piece(P::kColumnSums + number, q, [&](int first, Piece* kept) {",
        "each_piece(P::kColumnSums + number, 0 * q, [&](int first, Piece* kept) {",
        tests="tests/generated/test_emulated.py::test_weights_that_are_staged[layer_norm-bfloat16]",
    ),
    Fault(
        "declared ops: a residual is taken from another result",
        "bridge/ops/program_derivatives.py",
        "saved if result is None else results[result]",
        "saved if result is None else results[0]",
        tests="tests/catalogue/test_norms.py::test_one_call_has_the_bits_of_two_in_both_frameworks",
    ),
    Fault(
        "generated for CUDA: pairs are stored at the place of single columns",
        "cpp/generated/cuda/streams.cuh",
        "to += part.template offset<kEach>(q, row_stride);",
        "to += part.template offset<1>(q, row_stride);",
        tests="tests/generated/test_emulated.py::test_declared_ops[turned_pairs-bfloat16]",
    ),
    Fault(
        "generated for CUDA: leaves of a chunk are in another order",
        "cpp/generated/cuda/column_driver.cuh",
        "const int64_t first = chunk * kChunkRows + leaf() * kLeafRows;",
        "const int64_t first = chunk * kChunkRows + (leaf() + 1) % kLeaves * kLeafRows;",
        tests="tests/generated/test_emulated.py::test_bias_gelu[tanh-float32]",
    ),
    Fault(
        "compiled programs: a call that is lowered for CUDA requests a CPU library",
        "bridge/jax/_adapter/ffi.py",
        "op.ask_for_machine_code(params, dtypes, platform, ",
        'op.ask_for_machine_code(params, dtypes, "cpu", ',
        tests="tests/generated/test_requests.py::test_a_call_asks_for_its_platform_alone",
    ),
    Fault(
        "kernels of the build that a device refuses count as loaded",
        "bridge/generated/requests.py",
        "return True\n        return False",
        "return True\n        return found is not None",
        tests="tests/generated/test_built_kernels.py::test_what_a_device_refuses_is_compiled",
    ),
    Fault(
        "a device that comes into use later has no kernels of the build",
        "bridge/generated/built_kernels.py",
        "                return False\n    return arch",
        "                return True\n    return arch",
        tests="tests/generated/test_built_kernels.py::test_all_are_added_with_the_first_request",
    ),
    Fault(
        "layer_norm: the means are added before they are subtracted",
        "bridge/catalogue/norms.py",
        "    return shifted((x - mean - correction) * r, weight, bias)",
        "    return _shifted((x - (mean + correction)) * r, weight, bias)",
        tests="tests/catalogue/test_norms.py::test_rows_whose_mean_is_far_above_their_spread",
    ),
    Fault(
        "rms_norm_rotary: the mean is of the first half of the row",
        "bridge/catalogue/norm_rotary.py",
        "bl.mean(first * first + second * second)",
        "bl.mean(first * first + first * first)",
        tests="tests/catalogue/test_norm_rotary.py::test_values_and_gradients",
    ),
    Fault(
        "rms_norm_rotary: the columns of a partial rotation stay in another order",
        "bridge/catalogue/norm_rotary.py",
        "(half, rest, half, rest)) if is_moved else y",
        "(half, half, rest, rest)) if is_moved else y",
        tests="tests/catalogue/test_norm_rotary.py::test_values_and_gradients",
    ),
    Fault(
        "gated_rms_norm: each group has the weight of the first one",
        "bridge/catalogue/gated_norms.py",
        "weight = weight.reshape(apart[-2:])",
        "weight = weight.reshape(apart[-2:])[:1]",
        tests="tests/catalogue/test_gated_norms.py::test_whole_groups_are_rows",
    ),
    Fault(
        "dyt: the gradient of alpha leaves out the columns after the first",
        "bridge/catalogue/numbers.py",
        "bl.where(zeros < 0.0, zeros, number)",
        "bl.where(bl.column() > 0, bl.stop_gradient(number), number)",
        tests="tests/catalogue/test_dyt.py::test_dyt",
    ),
    Fault(
        "group_norm: the places of channels last are read before the channels",
        "bridge/catalogue/group_norm.py",
        "x = x.reshape(n, places, channels).swapaxes(1, 2)",
        "x = x.reshape(n, channels, places)",
        tests="tests/catalogue/test_group_norm.py::test_the_layout_changes_no_bit",
    ),
    Fault(
        "bias_gelu: the derivative at -inf is a bfloat16 one that has not underflowed",
        "cpp/math/gelu_for_16_bits.h",
        "static constexpr float bound = 14.625f, centre = 6.0f;",
        "static constexpr float bound = 14.5f, centre = 6.0f;",
        tests="tests/catalogue/test_bias_gelu.py::test_the_derivative_at_minus_infinity_is_zero",
        keyword="none",
    ),
    Fault(
        "rules of a user are checked where the op has no value",
        "bridge/lang/derivatives/custom.py",
        "        is_inside = not any(np.isnan(each).any() for each in results)\n",
        "        is_inside = True\n",
        tests="tests/declared/test_pinned.py::test_rules_that_read_a_result_are_checked_inside_of_its_domain",
    ),
    Fault(
        "a loss of NaN in a row of -inf has the gradient of a label",
        "bridge/lang/functions.py",
        "    return rest * where(largest == -math.inf, math.nan, 1.0)",
        "    return rest",
        tests="tests/catalogue/test_rows_of_minus_infinity.py::test_value_and_gradient_are_nan",
    ),
)

# Faults of the comparison with a table of hashes.
TABLES = (
    Fault(
        "a table of hashes is written though the frameworks disagree",
        "bridge/cli/parity/proof.py",
        'if found["disagreeing"]:',
        'if found["disagreeing"] and other is not None:',
        tests="tests/cli/test_parity_table.py::test_no_table_is_written_if_the_frameworks_disagree",
    ),
    Fault(
        "a result with the table's bits in one framework counts as equal",
        "bridge/cli/parity/differences.py",
        "elif {*here[key].values()} == {theirs}:",
        "elif theirs in here[key].values():",
        tests="tests/cli/test_parity_table.py::test_one_wrong_bit_in_one_framework_is_named",
    ),
    Fault(
        "the sum of a table of hashes is not compared",
        "bridge/cli/parity/table.py",
        "elif end[2] != _sum(lines[:-1]) or any(len(row) != 5 for row in rows):",
        "elif any(len(row) != 5 for row in rows):",
        tests="tests/cli/test_parity_table.py::test_a_file_that_cannot_be_compared",
        keyword="differs",
    ),
)

MASKS = (
    Fault(
        "a compiled program reads a uint8 mask as floating numbers",
        "bridge/lang/emission/cpu_tiles.py",
        "dtype in (*FLOATING, *OF_MASKS)",
        'dtype in (*FLOATING, "bool")',
        tests="tests/generated/test_bits.py::test_masks",
    ),
)

_ORDER = "tests/products/test_order.py"
_EMULATED = "tests/products/test_emulated.py"
PRODUCTS = (
    Fault(
        "a leaf of a product ends one term early",
        "cpp/products/call.h",
        "constexpr int64_t kProductLeaf = 256;",
        "constexpr int64_t kProductLeaf = 255;",
        tests=_ORDER,
    ),
    Fault(
        "the chain of a tile starts from 0 in place of -0",
        "cpp/products/product_kernel.cpp",
        "sums[i][v] = all_of(Real(-0.0));",
        "sums[i][v] = all_of(Real(0.0));",
        tests=f"{_ORDER}::test_signs_of_zeros",
    ),
    Fault(
        "a leaf without a partner is added before the larger subtree's own sum",
        "cpp/products/strips.h",
        "for (; ((leaf >> level) & 1) != 0; ++level)",
        "for (; ((leaf >> level) & 3) == 1; ++level)",
        tests=_ORDER,
    ),
    Fault(
        "the rest of a tree loses its first subtree",
        "cpp/products/product_kernel.cpp",
        "for (++level; (leaf + 1) >> level != 0; ++level)",
        "for (++level; (leaf + 1) >> level > 1; ++level)",
        tests=_ORDER,
    ),
    Fault(
        "a product counts a term with the factor 0",
        "cpp/products/product_kernel.cpp",
        "if (kSkipsZeros && a[i] == 0) continue;",
        "if (false && a[i] == 0) continue;",
        tests="tests/products/test_public.py::test_zeros_are_absent",
    ),
    Fault(
        "the product of few rows counts a term with the factor 0",
        "cpp/products/strips.h",
        "if (kSkipsZeros && a[i] == 0) continue;",
        "if (false && a[i] == 0) continue;",
        tests="tests/products/test_public.py::test_zeros_are_absent",
    ),
    Fault(
        "a part of a contraction that is no subtree counts as one",
        "bridge/ops/product_splits.py",
        "leaves & -leaves == leaves",
        "leaves > 0",
        tests="tests/jax/test_sharded_products.py::test_values_and_gradients",
        keyword="three",
    ),
    Fault(
        "the sums of all devices are added in a chain",
        "bridge/ops/product_splits.py",
        "    while parts > 2:",
        "    while parts > 4:",
        tests="tests/jax/test_sharded_products.py::test_values_and_gradients",
        keyword="axes",
    ),
    Fault(
        "a gradient of a product counts the absent terms",
        "bridge/ops/product.py",
        "False, params.skips_zeros, params.bits)",
        "False, False, params.bits)",
        tests="tests/products/test_public.py::test_zeros_are_absent_from_gradients",
    ),
    Fault(
        "a bias is left out of a product",
        "cpp/products/product_kernel.cpp",
        "if (region_.bias != nullptr) add_to(from, bias, count);",
        "if (region_.bias != nullptr) add_to(bias, from, count);",
        tests=_ORDER,
    ),
    Fault(
        "tensor cores: a leaf is one step short",
        "cpp/products/tensor_product.cuh",
        "constexpr int64_t kLeafSteps = kProductLeaf / kTensorStep;",
        "constexpr int64_t kLeafSteps = kProductLeaf / kTensorStep - 1;",
        tests=_EMULATED,
    ),
    Fault(
        "tensor cores: a chain starts again within a leaf",
        "cpp/products/tensor_product.cuh",
        "        add_step(a, b, shared + stage * kStageRuns, sums);",
        "        Sums own = {};\n"
        "        add_step(a, b, shared + stage * kStageRuns, own);\n"
        "        each([&](int i, int j, int e) { sums[i][j][e] += own[i][j][e]; });",
        tests=_EMULATED,
    ),
    Fault(
        "tensor cores: a step is read before its copies are there",
        "cpp/products/tensor_product.cuh",
        "simt::wait_for_copies<kStages - 2>();",
        "simt::wait_for_copies<kStages - 1>();",
        tests=_EMULATED,
    ),
    Fault(
        "tensor cores: the terms behind the last are read",
        "cpp/products/tensor_panel.cuh",
        "terms_ > (kHasLanesInRows ? row : 0)",
        "terms_ + row >= 0",
        tests=_EMULATED,
    ),
    Fault(
        "tensor cores: a leaf without a partner counts as zero",
        "cpp/products/tensor_product.cuh",
        "        if ((leaf >> level & 1) != 0) add_waiting(waiting(params, level), sums);\n"
        "      return;",
        "        add_waiting(waiting(params, level), sums);\n      return;",
        tests=_EMULATED,
    ),
    Fault(
        "tensor cores: the bias is added after the rounding",
        "cpp/products/tensor_product.cuh",
        "if (bias != nullptr) sum = sum + added;",
        "if (bias != nullptr)\n"
        "            sum = float(math::to_double(math::round_to<math::bfloat16>(sum))) + added;",
        tests=_EMULATED,
    ),
    Fault(
        "a product of 16 bits forgets the word for its bits in its gradient",
        "bridge/ops/product.py",
        "own = ProductParams(dtype, False, not params.transposed_b, bits=bits)",
        "own = ProductParams(dtype, False, not params.transposed_b)",
        tests="tests/products/test_bits.py",
    ),
    Fault(
        "sums with absent terms run on tensor cores",
        "bridge/ops/product.py",
        "fits = fits_tensor_cores(*dtypes, params.dtype) and not params.skips_zeros",
        "fits = fits_tensor_cores(*dtypes, params.dtype)",
        tests="tests/products/test_bits.py",
    ),
    Fault(
        "the gradient of a weight repeats the transposition",
        "bridge/ops/product.py",
        "ProductParams(dtype, True, params.transposed_a, bits=params.bits)",
        "ProductParams(dtype, True, not params.transposed_a, bits=params.bits)",
        tests="tests/products/test_products.py::test_values_and_gradients",
    ),
)

_EMBEDDING = "tests/embedding/test_bits.py"
EMBEDDINGS = (
    Fault(
        "the positions of an id are added in decreasing order",
        "cpp/embedding/embedding_kernel.cpp",
        "part.order[i] * call.cols",
        "part.order[begin + end - 1 - i] * call.cols",
        tests=f"{_EMBEDDING}::test_values_and_derivatives",
    ),
    Fault(
        "a leaf of a row's gradient has 15 positions",
        "cpp/tiles/column_stack.h",
        "if (++rows < kLeafRows) return;",
        "if (++rows < kLeafRows - 1) return;",
        tests=f"{_EMBEDDING}::test_values_and_derivatives",
    ),
    Fault(
        "a part of the rows leaves out its first one",
        "cpp/embedding/embedding.cpp",
        "            first_row(batch, row_part),",
        "            first_row(batch, row_part) + (row_part > 0),",
        tests=f"{_EMBEDDING}::test_threads_and_instruction_sets",
    ),
    Fault(
        "an id that is no row wraps",
        "cpp/embedding/embedding.cpp",
        "if (id >= 0 && id < call.rows) use(id, i);",
        "if (id >= -call.rows && id < call.rows) use(id < 0 ? id + call.rows : id, i);",
        tests="tests/embedding/test_transforms.py::test_out_of_range_in_a_trace",
    ),
    Fault(
        "a negative id counts from the end under jit",
        "bridge/jax/_adapter/embeddings.py",
        "index = jnp.where(is_row, ids, 0)",
        "is_row, index = is_row | (ids >= -rows), jnp.where(ids < 0, ids + rows, ids)",
        tests="tests/embedding/test_transforms.py::test_out_of_range_in_a_trace",
    ),
    Fault(
        "an id out of range has a tangent of NaN",
        "bridge/torch/_adapter/embeddings.py",
        "rows_of(x, ids, marks=False)",
        "rows_of(x, ids)",
        tests="tests/embedding/test_transforms.py::test_out_of_range_in_a_trace",
    ),
    Fault(
        "vmap over ids alone reads its results in another order",
        "bridge/torch/_adapter/embeddings.py",
        "moved = ids.movedim(in_dims[1], 1)",
        "moved = ids.movedim(in_dims[1], 1).flip(1)",
        tests="tests/embedding/test_transforms.py::test_vmap",
    ),
)

_ATTENTION = "bridge/catalogue/attention.py"
_CHUNKS = "bridge/catalogue/attention_chunks.py"
_SCORES = "bridge/catalogue/attention_scores.py"
_IN_CHUNKS = "tests/attention/test_order.py::test_chunk_sizes"
ATTENTION = (
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
        "while self._waiting and self._waiting[-1][0] == count:",
        "if self._waiting and self._waiting[-1][0] == count:",
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
)

BUILD = (
    Fault(
        "a build without NumPy rounds no constant to float32",
        "cmake/without_numpy.py",
        'super().__new__(cls, *struct.unpack("f", struct.pack("f", x)))',
        "super().__new__(cls, x)",
        tests="tests/test_isolated_build.py::test_the_sources_are_the_same_without_numpy",
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

FAULTS = (
    *BIAS_GELU,
    *SOFTMAX,
    *BIAS_DROPOUT_ADD,
    *SHARED,
    *MANY_DEVICES,
    *DECLARED,
    *TABLES,
    *MASKS,
    *PRODUCTS,
    *EMBEDDINGS,
    *ATTENTION,
    *BUILD,
    *INVARIANT,
    *OPTIMIZERS,
    *REPLACED_PRODUCTS,
)
