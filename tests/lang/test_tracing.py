"""The program traced from a declaration, and the refused declarations."""

from __future__ import annotations

import copy
import functools
import pickle
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import bridge
from bridge import lang as bl
from bridge.lang.tracing import declared, trace
from tests.lang import declarations as ops


def traced(op: Callable[..., Any], **static: Any) -> Any:
    declaration = declared(op)
    return trace(
        declaration, [True] * len(declaration.parameters), {**declaration.static, **static}
    )


def test_a_program_prints_its_phases() -> None:
    assert str(traced(ops.rms_norm)).splitlines() == [
        "rms_norm(x: Full, weight: Row)",
        "  phase 0",
        "     a = x * x                                    full",
        "     b = sum(a)                                   per row",
        "     c = columns()",
        "  phase 1",
        "     d = b / c                                    per row",
        "     e = d + 1e-06                                per row",
        "     f = rsqrt(e)                                 per row",
        "     g = x * f                                    full",
        "     h = g * weight                               full",
        "  -> the result: h (Full)",
    ]


def test_zeros_of_both_signs_are_two_constants() -> None:
    def positive(x: bl.Full):
        return bl.maximum(x, 0.0)

    def negative(x: bl.Full):
        return bl.maximum(x, -0.0)

    assert traced(positive).nodes != traced(negative).nodes


def test_powers_that_are_whole_numbers() -> None:
    """A parameter may be any of them: x**0 is 1, and 2.0 counts as 2."""

    def power(x: bl.Full, *, n: float = 2.0):
        return bl.exp(x) * x**n

    def squared(x: bl.Full):
        return bl.exp(x) * (x * x)

    def times_one(x: bl.Full):
        return bl.exp(x) * 1.0

    assert traced(power, n=2.0).nodes == traced(power, n=2).nodes == traced(squared).nodes
    for zero in (0, 0.0, -0.0):
        assert traced(power, n=zero).nodes == traced(times_one).nodes
    for wrong in (0.5, True, float("nan"), float("inf")):
        with pytest.raises(bl.DeclarationError, match="only integer powers"):
            traced(power, n=wrong)


def test_numbers_of_numpy_are_numbers() -> None:
    def op(x: bl.Full):
        return np.float32(2.0) * x - np.float64(1.0) / (x + np.int64(3))

    def plain(x: bl.Full):
        return 2.0 * x - 1.0 / (x + 3)

    assert traced(op).nodes == traced(plain).nodes


def test_programs_are_values() -> None:
    one, other = traced(ops.layer_norm), traced(ops.layer_norm)
    assert one == other
    assert hash(one) == hash(other)
    assert traced(ops.layer_norm, eps=1e-3) != one
    assert pickle.loads(pickle.dumps(one)) == one == copy.deepcopy(one)


def test_an_absent_operand_makes_another_program() -> None:
    declaration = declared(ops.rms_norm)
    without = trace(declaration, [True, False], declaration.static)
    assert [operand.name for operand in without.operands] == ["x"]
    assert len(without.nodes) < len(traced(ops.rms_norm).nodes)


def test_only_what_keeps_every_bit_is_simplified() -> None:
    def same(x: bl.Full):
        negative = -x
        y = -negative * 1.0 + -0.0
        return bl.where(x > 0.0, y, y) / 1.0 - 0.0

    def different(x: bl.Full):
        return x + 0.0, x * 0.0, x - x, 0.0 - x

    assert [node.operation for node in traced(same).nodes] == ["operand"]
    assert {node.operation for node in traced(different).nodes} >= {"add", "mul", "sub"}


def test_equal_operations_are_done_once() -> None:
    def op(x: bl.Full, y: bl.Full):
        return bl.exp(x) * y + y * bl.exp(x)

    operations = [node.operation for node in traced(op).nodes]
    assert operations.count("exp") == 1
    # Both products: operands keep the order in which they were written.
    assert operations.count("mul") == 2


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_dropout_keeps_as_bias_dropout_add_does(p: float) -> None:
    from bridge.lang import philox
    from bridge.lang.reference import evaluate

    x = np.ones((6, 10))
    (found,) = evaluate(traced(ops.dropped, p=min(p, 0.9)), [x, np.int64(2**40 + 7)])
    words = philox.words(2**40 + 7, 0, np.arange(60, dtype=np.uint64)).reshape(6, 10)
    np.testing.assert_array_equal(found != 0, words >= round(min(p, 0.9) * 2**32))


def asks(x: bl.Full):
    if x > 0:
        return x
    return -x


def loops(x: bl.Full):
    return [v for v in x]


def rounds(x: bl.Full):
    return x * float(x)


def sums_a_column_sum(x: bl.Full):
    return bl.sum(bl.column_sum(x))


def adds_to_a_column_sum(x: bl.Full):
    return bl.column_sum(x) + 1.0


def returns_nothing(x: bl.Full):
    x * 2.0


def returns_a_truth_value(x: bl.Full):
    return x > 0.0


def returns_an_integer(x: bl.Full):
    return bl.argmax(x)


def returns_a_row(x: bl.Full, weight: bl.Row):
    return weight * 2.0


def uses_numpy(x: bl.Full):
    return np.exp(x)


def takes_elements(x: bl.Full):
    return x[0]


def takes_the_length(x: bl.Full):
    return bl.sum(x) / len(x)


def prints_digits(x: bl.Full):
    print(f"{x}: {x:.2f}")
    return x


def takes_a_root(x: bl.Full):
    return x**0.5


def adds_truth_values(x: bl.Full):
    return x * (x > 0.0)


def forgets_to_take_halves_apart(x: bl.Halves):
    return x * 2.0


def chooses_by_a_number(x: bl.Full):
    return bl.where(x, 1.0, 0.0)


def adds_an_array(x: bl.Full):
    return x + np.ones(3)


def has_no_such_gelu(x: bl.Full):
    return bl.gelu(x, "exact")  # type: ignore[arg-type]


_ELSEWHERE: list[Any] = []


def mixes(x: bl.Full):
    _ELSEWHERE.append(x)
    return x + _ELSEWHERE[0]


@pytest.mark.parametrize(
    ("op", "line", "words"),
    [
        (asks, "if x > 0:", "bl.where(condition, a, b)"),
        (loops, "return [v for v in x]", "not iterable"),
        (rounds, "return x * float(x)", "no number"),
        (sums_a_column_sum, "return bl.sum(bl.column_sum(x))", "only be returned"),
        (adds_to_a_column_sum, "return bl.column_sum(x) + 1.0", "only be returned"),
        (returns_nothing, "", "the result is NoneType, expected a value"),
        (returns_a_truth_value, "", "return bl.where(condition, 1.0, 0.0)"),
        (returns_an_integer, "", "not floating but int: return 1.0 * value"),
        (returns_a_row, "", "the same for all rows"),
        (uses_numpy, "return np.exp(x)", "use those of bridge.lang"),
        (takes_elements, "return x[0]", "bl.column() == k"),
        (takes_the_length, "return bl.sum(x) / len(x)", "bl.columns()"),
        (prints_digits, 'print(f"{x}: {x:.2f}")', "no digits"),
        (takes_a_root, "return x**0.5", "bl.sqrt(x)"),
        (adds_truth_values, "return x * (x > 0.0)", "no arithmetic on truth values"),
        (forgets_to_take_halves_apart, "return x * 2.0", "first, second = x"),
        (chooses_by_a_number, "return bl.where(x, 1.0, 0.0)", "no truth value"),
        (adds_an_array, "return x + np.ones(3)", "arrays come in as operands"),
        (has_no_such_gelu, 'return bl.gelu(x, "exact")', "one of 'tanh', 'none', 'sigmoid'"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_cannot_be_declared_is_refused_by_line(op: Any, line: str, words: str) -> None:
    number = op.__code__.co_firstlineno
    with pytest.raises(bl.DeclarationError, match=re.escape(words)) as caught:
        traced(op)
    text = str(caught.value)
    assert __file__ in text
    assert re.search(rf"line ({number}|{number + 1})\b", text), text
    assert line in text


def test_values_of_two_declarations_do_not_mix() -> None:
    _ELSEWHERE.clear()
    traced(mixes)
    with pytest.raises(bl.DeclarationError, match="another declaration"):
        traced(mixes)


def test_signatures_that_cannot_be() -> None:
    def unknown(x: bl.Full, y: int):
        return x

    def bare(x):
        return x

    def many(*x: bl.Full):
        return x

    def absent(x: bl.Full | None = None):
        return x

    def default(x: bl.Full, y: bl.Row = 1):
        return x

    def shapeless(x: bl.Row):
        return x

    for op, words in (
        (unknown, "parameter y has the annotation int"),
        (bare, "parameter x has no annotation, expected bridge.Full"),
        (many, r"\*x: each operand of an op has its own name"),
        (absent, "the first operand gives the shape and is always there"),
        (default, "operand y has the default 1, expected None or no default"),
        (shapeless, "the first operand gives the shape: a Full, Halves or Pairs"),
        (len, "no Python function"),
        (
            functools.partial(ops.functions),
            "no Python function: declare one, with `def`, that calls it",
        ),
    ):
        with pytest.raises(bl.DeclarationError, match=words):
            declared(op)
    with pytest.raises(bl.DeclarationError, match="keep='q': no local variable"):
        trace(declared(ops.rms_norm, keep=("q",)), [True, True], {"eps": 1.0})
    with pytest.raises(TypeError, match="annotation"):
        bl.Full()
    with pytest.raises(bl.DeclarationError, match="inside a declaration"):
        bl.column()


def test_threads_declare_side_by_side() -> None:
    expected = traced(ops.functions)
    found: list[Any] = []
    threads = [
        threading.Thread(target=lambda: found.append(traced(ops.functions))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 8


def test_a_profiler_goes_on_after_a_declaration() -> None:
    def profiler(*event: Any) -> None: ...

    sys.setprofile(profiler)
    try:
        traced(ops.rms_norm)
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(None)


def test_declared_under_a_profiler_written_in_c() -> None:
    import cProfile

    def afterwards() -> None: ...

    with cProfile.Profile() as profiler:
        trace(declared(ops.rms_norm, keep=("r",)), [True, True], {"eps": 1.0})
        afterwards()
    # From Python 3.12 on `sys.getprofile` does not see it.
    assert any(entry.code is afterwards.__code__ for entry in profiler.getstats())


def test_keep_names_local_variables() -> None:
    def on_one_path(x: bl.Full, weight: bl.Row | None = None):
        if weight is None:
            return x * 2.0
        ratio = bl.rsqrt(bl.mean(x * x))
        return x * ratio * weight

    @functools.wraps(on_one_path)
    def wrapped(**operands: Any):
        return on_one_path(**operands)

    for function in (on_one_path, wrapped):
        declaration = declared(function, keep="ratio")
        assert declaration.keep == ("ratio",)
        assert "ratio" in dict(trace(declaration, [True, True], {}).named)
        assert "ratio" not in dict(trace(declaration, [True, False], {}).named)
    with pytest.raises(bl.DeclarationError, match="keep='ration': no local variable"):
        declared(on_one_path, keep="ration")


def test_a_value_says_nothing_of_dtypes() -> None:
    def asks_for_the_dtype(x: bl.Full):
        return x if x.dtype == "float32" else x * 2.0  # type: ignore[attr-defined]

    with pytest.raises(AttributeError):
        traced(asks_for_the_dtype)


def test_an_annotation_that_is_not_known() -> None:
    def misspelt(x: bridge.Ful):  # type: ignore[name-defined]
        return x

    with pytest.raises(bl.DeclarationError, match="an annotation is not known"):
        declared(misspelt)


def test_declaring_needs_neither_framework() -> None:
    code = (
        "import sys, bridge.lang, bridge.lang.derivatives.modes, bridge.lang.reference;"
        "print([m for m in ('torch', 'jax', 'scipy') if m in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert result.stdout.strip() == "[]"
    assert bridge.__version__


def test_integers_of_64_bits() -> None:
    def drawn(x: bl.Full, *, seed: int) -> Any:
        return bl.where(bl.dropout_keep(0.5, seed), x, 0.0)

    def far(x: bl.Full) -> Any:
        return bl.where(bl.column() == 2**63, x, 0.0)

    declaration = declared(drawn)
    largest = trace(declaration, [True], {"seed": 2**64 - 1})
    assert largest == trace(declaration, [True], {"seed": -1})
    with pytest.raises(bl.DeclarationError, match="does not fit 64 bits"):
        trace(declared(far), [True], {})
