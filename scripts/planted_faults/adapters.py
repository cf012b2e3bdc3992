"""Faults of bias_dropout_add, of code that all ops share, and of calls on several devices."""

from __future__ import annotations

from .fault import DERIVATIVES, LAYOUTS, Fault

DENORMALS = "tests/test_bits.py::test_denormals_survive_every_floating_point_mode"
COLUMN_TREE = "tests/test_bits.py::test_bias_gradient_follows_the_tree"
ROW_TREE = "tests/test_bits.py::test_softmax_gradient_follows_the_tree"
_DROPOUT = "bridge/catalogue/bias_dropout_add.py"

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
        DERIVATIVES,
        "None if place is None else total(place) for place in halves",
        "None if place is None or operand.role is roles.Row else total(place) for place in halves",
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
