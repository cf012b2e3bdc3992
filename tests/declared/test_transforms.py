"""Declared ops in every transform, with the same bits in both frameworks."""

from __future__ import annotations

import copy
import inspect
import itertools
import multiprocessing
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import bridge
import bridge.jax
import bridge.torch
from bridge import lang as bl
from bridge.lang import roles
from tests.declared.ops import OTHERS, SEVEN, rms_norm
from tests.lang.arrays import draw

OPS = {op.__name__: op for op in SEVEN} | OTHERS
SMOOTH = [op.__name__ for op in SEVEN]  # except for the squared ReLU at 0, which is not tested
every_op = pytest.mark.parametrize("name", OPS)

Arrays = list[Any]


class Example:
    """An op and its operands; the floating operands are differentiated."""

    def __init__(
        self,
        name: str,
        rng: np.random.Generator,
        dtypes: Sequence[str] = ("float32",),
        space: tuple[int, ...] = (3, 4, 7),
    ) -> None:
        self.op = OPS[name]
        operands = self.op._example.program.operands  # type: ignore[union-attr]
        self.roles = [operand.role for operand in operands]
        self.values = [draw(rng, operand, space) for operand in operands]
        self.floating = [i for i, operand in enumerate(operands) if operand.dtype == "float"]
        self.dtypes = [dtypes[i % len(dtypes)] for i in range(len(operands))]

    def torch(self) -> Arrays:
        made: Arrays = []
        for i, value in enumerate(self.values):
            if self.roles[i] is roles.Integer:
                made.append(int(value))
            elif i in self.floating:
                made.append(torch.tensor(value).to(getattr(torch, self.dtypes[i])))
            else:
                made.append(torch.tensor(value))
        return made

    def jax(self) -> Arrays:
        return [
            int(value)
            if self.roles[i] is roles.Integer
            else jnp.asarray(value).astype(self.dtypes[i])
            if i in self.floating
            else jnp.asarray(value)
            for i, value in enumerate(self.values)
        ]

    def of_floating(self, operands: Arrays) -> tuple[Callable[..., Any], Arrays]:
        """Returns the op as a function of its floating operands that returns a tuple."""

        def function(*given: Any) -> tuple[Any, ...]:
            placed = list(operands)
            for i, value in zip(self.floating, given, strict=True):
                placed[i] = value
            results = self.op(*placed)
            return results if isinstance(results, tuple) else (results,)

        return function, [operands[i] for i in self.floating]


def numpy_of(array: Any) -> np.ndarray:
    if isinstance(array, torch.Tensor):
        array = array.detach()
        return (array.view(torch.int16) if array.dtype is torch.bfloat16 else array).numpy()
    array = np.asarray(array)
    return array.view(np.int16) if array.dtype == jnp.bfloat16 else array


def same(found: Any, expected: Any) -> None:
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(numpy_of(a), numpy_of(b))


def of_torch(example: Example, order: int) -> Any:
    """Returns all results, and all cotangents to an order, for random cotangents."""
    function, values = example.of_floating(example.torch())
    return nested(torch.func.vjp, function, values, order, torch.as_tensor)


def of_jax(example: Example, order: int) -> Any:
    function, values = example.of_floating(example.jax())
    return nested(jax.vjp, function, values, order, jnp.asarray)


def nested(vjp: Any, function: Any, values: Arrays, order: int, array: Any) -> Any:
    results, pull = vjp(function, *values)
    found = [results]
    for level in range(order):
        numbers = np.random.default_rng(level)
        cotangents = tuple(
            array(numbers.normal(size=tuple(r.shape)).astype(np.float32)).to(r.dtype)
            if isinstance(r, torch.Tensor)
            else array(numbers.normal(size=r.shape).astype(np.float32)).astype(r.dtype)
            for r in results
        )
        found.append(pull(cotangents))
        if level + 1 < order:
            before = function
            function = lambda *v, f=before, c=cotangents: vjp(f, *v)[1](c)  # noqa: E731
            results, pull = vjp(function, *values)
    return found


@pytest.mark.parametrize(
    "dtypes",
    [("float32",), ("bfloat16",), ("float16", "float32"), ("bfloat16", "float16")],
    ids=str,
)
@every_op
def test_same_bits_to_the_second_order(name: str, dtypes: Any, rng: np.random.Generator) -> None:
    example = Example(name, rng, dtypes)
    same(of_torch(example, 2), of_jax(example, 2))


@pytest.mark.long
@pytest.mark.sampled(3)
@every_op
def test_same_bits_of_the_third_order(name: str, rng: np.random.Generator) -> None:
    example = Example(name, rng, space=(2, 5))
    same(of_torch(example, 3), of_jax(example, 3))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", SMOOTH)
def test_second_order_of_what_is_computed_again(name: str, rng: np.random.Generator) -> None:
    example = Example(name, rng, space=(2, 5))
    function, values = example.of_floating(example.jax())
    directions = [jnp.asarray(rng.normal(size=v.shape), v.dtype) for v in values]

    def second(f: Any) -> Any:
        def loss(*values: Any) -> Any:
            return sum(jnp.sum(result * result) for result in f(*values))

        gradient = jax.grad(loss, tuple(range(len(values))))
        return jax.jvp(gradient, tuple(values), tuple(directions))

    for found, expected in zip(
        jax.tree.leaves(second(jax.checkpoint(function))),
        jax.tree.leaves(second(function)),
        strict=True,
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives_are_those_of_the_function(name: str, rng: np.random.Generator) -> None:
    example = Example(name, rng, ("float64",), (2, 3))
    function, values = example.of_floating(example.torch())
    for value in values:
        value.requires_grad_()
    torch.autograd.gradcheck(function, values, check_forward_ad=True, check_batched_grad=True)
    torch.autograd.gradgradcheck(function, values)

    def gradient(*given: Any) -> Any:
        return torch.autograd.grad(function(*given)[0].sin().sum(), given, create_graph=True)

    torch.autograd.gradgradcheck(gradient, values)


@every_op
def test_gradients_towards_some_operands_are_those_towards_all(
    name: str, rng: np.random.Generator
) -> None:
    """JAX's reverse mode transposes forward mode; torch tests forward mode itself."""
    example = Example(name, rng)
    g, y = example.of_floating(example.jax())
    f, x = example.of_floating(example.torch())
    results, pull = jax.vjp(g, *y)
    cotangents = tuple([jnp.cos(result) for result in results])
    full = pull(cotangents)

    def pushed(function: Any) -> Any:
        def loss(*values: Any) -> Any:
            tangents = torch.func.jvp(function, values, tuple([v * 0.5 for v in values]))[1]
            return sum(t.square().sum() for t in tangents)

        return loss

    def of(function: Any, values: Any, some: Any) -> Any:
        def chosen(*given: Any) -> Any:
            placed = list(values)
            for i, value in zip(some, given, strict=True):
                placed[i] = value
            return function(*placed)

        return chosen, [values[i] for i in some]

    for count in range(1, len(y)):
        for some in itertools.combinations(range(len(y)), count):
            function, values = of(g, y, some)
            same(jax.vjp(function, *values)[1](cotangents), [full[i] for i in some])
            function, values = of(f, x, some)
            each = tuple(range(count))
            found = torch.func.grad(pushed(function), each)(*values)
            for i, (one, value) in enumerate(zip(found, values, strict=True)):
                alone, given = of(pushed(function), values, (i,))
                assert one.shape == value.shape
                torch.testing.assert_close(
                    one, torch.func.grad(alone)(*given), rtol=1e-3, atol=1e-3
                )


@bridge.op
def summands(
    x: bridge.Full, table: bridge.Table, row: bridge.Row, p: bridge.PerRow, h: bridge.Full
):
    return x + 2.0 * table + 3.0 * row + 5.0 * p + 7.0 * h


def test_cotangents_go_to_their_own_operands(rng: np.random.Generator) -> None:
    """All shapes are equal, so only the values distinguish the operands."""
    x = jnp.asarray(rng.normal(size=(4, 4)), jnp.float32)
    operands = (x, x, x[0], x[0], x)
    factors = (1.0, 2.0, 3.0, 5.0, 7.0)
    for count in range(1, 6):
        for some in itertools.combinations(range(5), count):

            def total(*given: Any, some: Any = some) -> Any:
                placed = list(operands)
                for i, value in zip(some, given, strict=True):
                    placed[i] = value
                return summands(*placed).sum()

            found = jax.grad(total, tuple(range(count)))(*[operands[i] for i in some])
            for i, one in zip(some, found, strict=True):
                expected = factors[i] * (1.0 if operands[i].ndim == 2 else 4.0)
                np.testing.assert_allclose(one, np.full(operands[i].shape, expected), rtol=1e-6)


_NUMBERS = ("exp", "log", "sqrt", "tanh", "sigmoid", "silu", "softplus", "erf", "gelu")


@pytest.mark.parametrize("name", [*_NUMBERS, "logsumexp"])
def test_what_a_choice_leaves_out_has_no_gradient_of_any_order(name: str) -> None:
    """This holds for any value there, and shared operands do not change."""
    function = getattr(bl, name)

    @bridge.op
    def chosen(x: bridge.Full, w: bridge.Row, m: bridge.PerRow[int]) -> Any:
        return bl.where(m > 0, bl.sum(function(x + w)), 0.0)

    @bridge.op
    def chosen_here(x: bridge.Full, w: bridge.Row, m: bridge.Mask) -> Any:
        return bl.where(m, function(x + w), 0.0)

    left_out = [[np.nan, 1.0], [np.inf, 2.0], [-np.inf, 0.0], [-3.0, np.nan]]
    x = np.array([*left_out, [1.5, 2.5]], np.float32)
    rows, columns = torch.tensor([0, 0, 0, 0, 1]), torch.tensor([[False] * 2] * 4 + [[True] * 2])
    w = torch.zeros(2)
    for op, mask in ((chosen, rows), (chosen_here, columns)):
        if op is chosen_here and name == "logsumexp":
            continue
        found = []
        for values, choice in ((x, mask), (x[-1:], mask[-1:])):
            leaves = torch.tensor(values, requires_grad=True), w.clone().requires_grad_()
            total, orders = op(*leaves, choice).sum(), []
            for _ in range(3):
                gradients = torch.autograd.grad(total, leaves, create_graph=True)
                orders += [gradients[0][-1], gradients[1]]
                assert not gradients[0][:-1].any()
                total = sum(g.sin().sum() for g in gradients)
            found.append(orders)
        for whole, alone in zip(*found, strict=True):
            assert whole.isfinite().all()
            torch.testing.assert_close(whole, alone)


@pytest.mark.long
@every_op
def test_forward_mode_and_vmap(name: str, rng: np.random.Generator) -> None:
    example = Example(name, rng)
    f, x = example.of_floating(example.torch())
    g, y = example.of_floating(example.jax())
    pushed = torch.func.jvp(f, tuple(x), tuple(v * 0.5 for v in x))[1]
    same(pushed, jax.jvp(g, y, [v * 0.5 for v in y])[1])

    def stacked(array: Any, stack: Any) -> Any:
        return stack([array, array * 2])

    one_by_one = [f(*[v * scale for v in x]) for scale in (1, 2)]
    expected = [torch.stack(results) for results in zip(*one_by_one, strict=True)]
    same(torch.func.vmap(f)(*[stacked(v, torch.stack) for v in x]), expected)
    same(jax.vmap(g)(*[stacked(v, jnp.stack) for v in y]), expected)
    last = [stacked(v, lambda a: torch.stack(a, -1)) for v in x]
    same(torch.func.vmap(f, -1)(*last), expected)
    if len(x) > 1:  # one operand for all batches
        only = torch.func.vmap(f, (0, *[None] * (len(x) - 1)))(stacked(x[0], torch.stack), *x[1:])
        each = [f(x[0] * scale, *x[1:]) for scale in (1, 2)]
        same(only, [torch.stack(results) for results in zip(*each, strict=True)])


@every_op
def test_torch_compile(name: str, rng: np.random.Generator) -> None:
    example = Example(name, rng)
    function, values = example.of_floating(example.torch())

    def run(f: Any) -> Any:
        given = [value.clone().requires_grad_() for value in values]
        results = f(*given)
        loss = sum((result * result).sum() for result in results)
        return [*results, *torch.autograd.grad(loss, given)]

    torch._dynamo.reset()
    same(run(torch.compile(function, fullgraph=True, backend="aot_eager")), run(function))


def test_ops_that_are_first_met_in_one_graph() -> None:
    ops = []
    for number in range(3):

        @bridge.op
        def plus(x: bridge.Full, *, number: float = 0.123 + number) -> Any:
            return x + number

        ops.append(plus)

    def all_of_them(x: torch.Tensor) -> torch.Tensor:
        for op in ops:
            x = op.torch(x)
        return x

    torch._dynamo.reset()
    x = torch.zeros(4)
    found = torch.compile(all_of_them, fullgraph=True, backend="aot_eager")(x)
    assert torch.equal(found, all_of_them(x))


def test_a_compiled_op_takes_other_sizes_and_static_arguments() -> None:
    x, w = torch.randn(6, 4), torch.randn(4)
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x, eps: rms_norm(x, w, eps=eps), fullgraph=True, backend="aot_eager", dynamic=True
    )
    for rows, eps in ((6, 1e-6), (5, 1e-6), (3, 0.5)):
        assert torch.equal(compiled(x[:rows], eps), rms_norm(x[:rows], w, eps=eps))


@pytest.mark.long
def test_exported_programs_run_without_the_declaration(tmp_path: Any) -> None:
    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor, w: torch.Tensor) -> Any:
            return rms_norm(x, w)

    x, w = torch.randn(6, 4), torch.randn(4)
    torch._dynamo.reset()
    torch.export.save(torch.export.export(Module(), (x, w)), tmp_path / "module.pt2")
    torch.save((x, w, rms_norm(x, w)), tmp_path / "arrays.pt")
    code = (
        "import torch, bridge.torch\n"
        "x, w, y = torch.load('arrays.pt')\n"
        "assert torch.equal(torch.export.load('module.pt2').module()(x, w), y)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, timeout=240)


def test_jit_scan_and_export(rng: np.random.Generator) -> None:
    x, w = jnp.asarray(rng.normal(size=(5, 3, 4))), jnp.asarray(rng.normal(size=4))
    expected = rms_norm(x, w)
    same(jax.jit(rms_norm)(x, w), expected)
    same(jax.lax.scan(lambda carry, row: (carry, rms_norm(row, w)), 0, x)[1], expected)
    same(jax.checkpoint(rms_norm)(x, w), expected)
    safe = [jax.export.DisabledSafetyCheck.custom_call("bridge_program")]
    exported = jax.export.export(jax.jit(rms_norm), disabled_checks=safe)(x, w)
    same(jax.export.deserialize(exported.serialize()).call(x, w), expected)


_SPLITS = [P("a"), P(None, "a"), P(("a", "b")), P("a", "b"), P(None, None, "a"), P("a", None, "b")]


@pytest.mark.long
@pytest.mark.parametrize("split", _SPLITS, ids=str)
@every_op
def test_sharded_jit(name: str, split: Any, rng: np.random.Generator) -> None:
    example = Example(name, rng, space=(4, 32, 8))
    mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    values = example.jax()
    shared = {roles.Row, roles.Table, roles.Mask}
    spread = [
        value
        if isinstance(value, int)
        else jax.device_put(
            value,
            NamedSharding(mesh, P() if role in shared else P(*split[: value.ndim])),
        )
        for value, role in zip(values, example.roles, strict=True)
    ]

    def derivatives(operands: Arrays) -> Any:
        function, given = example.of_floating(operands)

        def both(*given: Any) -> Any:
            results, pull = jax.vjp(function, *given)
            return results, pull(jax.tree.map(jnp.cos, results))

        return jax.jit(both)(*given)

    same(derivatives(spread), derivatives(values))


def test_operands_may_be_left_out_or_named() -> None:
    x, w = torch.randn(3, 4), torch.ones(4)
    assert torch.equal(rms_norm(x), rms_norm(weight=w, x=x))
    same(rms_norm.jax(x.numpy()), rms_norm(x))
    np.testing.assert_allclose(rms_norm.reference(x.numpy(), w.numpy()), rms_norm(x), rtol=1e-5)


def test_it_looks_like_the_function_that_was_declared() -> None:
    parameters = inspect.signature(rms_norm).parameters
    assert list(parameters) == ["x", "weight", "eps"]
    assert parameters["eps"].default == 1e-6
    assert list(inspect.signature(rms_norm.torch).parameters) == ["x", "weight", "eps", "out"]
    assert list(inspect.signature(rms_norm.jax).parameters) == ["x", "weight", "eps"]
    assert "rsqrt" in str(rms_norm)
    assert repr(rms_norm) == "<bridge.op rms_norm>"


@pytest.mark.long
def test_it_is_pickled_and_copied_as_a_function_is() -> None:
    assert copy.deepcopy(module_op) is module_op
    functions = (module_op, module_op.torch, module_op.jax, module_op.reference)
    for function in functions:
        assert copy.deepcopy(function) is function
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            assert pickle.loads(pickle.dumps(function, protocol)) is function
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        x = np.ones((2, 3), np.float32)
        assert (pool.apply(module_op.reference, (x,)) == 2.0).all()


@bridge.op
def module_op(x: bridge.Full) -> Any:
    """Returns twice x."""
    return 2.0 * x


def test_threads(rng: np.random.Generator) -> None:
    x = torch.tensor(rng.normal(size=(64, 33)))
    expected, found = rms_norm(x), []
    threads = [threading.Thread(target=lambda: found.append(rms_norm(x))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert all(torch.equal(each, expected) for each in found)


_SCRIPT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {missing!r}:
            raise ModuleNotFoundError("No module", name={missing!r})
sys.meta_path.insert(0, Missing())
import numpy as np
import bridge
from bridge import lang as bl

@bridge.op
def square(x: bridge.Full, w: bridge.Row):
    return x * x * w
x, w = np.ones((2, 3), np.float32), np.ones(3, np.float32)
"""
_RUN = {
    "jax": "import torch\n"
    "a = [torch.tensor(v, requires_grad=True) for v in (x, w)]\n"
    "square(*a).sum().backward()\n"
    "print(a[0].grad.sum().item(), a[1].grad.sum().item())",
    "torch": "import jax\n"
    "a = jax.grad(lambda x, w: square(x, w).sum(), (0, 1))(jax.numpy.asarray(x), w)\n"
    "print(float(a[0].sum()), float(a[1].sum()))",
}


@pytest.mark.long
@pytest.mark.parametrize("missing", ["jax", "torch"])
def test_one_framework_and_no_compiler_are_enough(missing: str, tmp_path: Any) -> None:
    result = subprocess.run(
        [sys.executable, "-c", _SCRIPT.format(missing=missing) + _RUN[missing]],
        env={"PATH": ""},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["12.0", "6.0"]


def test_wrong_arguments() -> None:
    x, w = torch.randn(2, 3), torch.randn(3)
    for call, kind, words in [
        (lambda: rms_norm(x, w[:2]), ValueError, r"weight has shape \[2\], expected \[3\]"),
        (lambda: rms_norm(x.int(), w), TypeError, "x has dtype int32, expected one of float16"),
        (lambda: rms_norm(x, w.numpy()), TypeError, "weight has type ndarray"),
        (lambda: rms_norm(x.numpy(), w), TypeError, "ndarray"),
        (lambda: rms_norm(x, w, eps=[1]), TypeError, "eps is a list, which cannot be hashed"),
        (lambda: rms_norm(x, other=1), TypeError, "unexpected keyword argument 'other'"),
        (lambda: rms_norm(x[0, 0]), ValueError, "x is 0-dimensional"),
        (lambda: OPS["swish_gate"](x), ValueError, "expected two halves"),
        (lambda: OPS["cross_entropy"](x, x[:, 0]), TypeError, "label has dtype float32"),
        (lambda: OPS["masked_mean"](x, x, x[:, 0]), TypeError, "hidden has dtype float32"),
        (lambda: OPS["masked_mean"](x, x[:, :2] > 0, x[:, 0]), ValueError, "broadcasts to"),
        (lambda: rms_norm(jnp.ones((2, 3)), jnp.ones(2)), ValueError, r"weight has shape \[2\]"),
        (lambda: rms_norm(jnp.ones((2, 3), int)), TypeError, "x has dtype int"),
    ]:
        with pytest.raises(kind, match=words):
            call()
