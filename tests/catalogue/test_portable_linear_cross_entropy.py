"""linear_cross_entropy by bridge's products: the bits of the plain form, in both frameworks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import bridge
import bridge.jax
import bridge.torch
from bridge.torch._ops import linear_cross_entropy as in_torch
from tests.attention.reference import same
from tests.catalogue.test_cross_entropy import reference
from tests.frameworks import DTYPES, EPSILON

OPTIONS: dict[str, dict[str, Any]] = {
    "mean": {},
    "sum": {"reduction": "sum", "z_loss": 0.01},
    "none": {"reduction": "none", "label_smoothing": 0.1},
    "all": {"label_smoothing": 0.1, "z_loss": 0.01, "softcap": 3.0, "ignore_index": 5},
}
SMOOTH = ("hidden", "weight", "bias")
Case = dict[str, Any]


def drawn(
    rng: np.random.Generator,
    form: str,
    dtype: str = "float32",
    rows: tuple[int, ...] = (37,),
    columns: int = 71,
    features: int = 13,
    has_bias: bool = True,
) -> Case:
    """Returns operands, the cotangent g and the options of a call."""
    options = {"reduction": "mean", **OPTIONS[form]}
    own = getattr(torch, dtype)
    shapes = {"hidden": (*rows, features), "weight": (columns, features), "bias": (columns,)}
    case: Case = {
        name: torch.tensor(rng.standard_normal(shape)).to(own) for name, shape in shapes.items()
    }
    if not has_bias:
        del case["bias"]
    labels = torch.tensor(rng.integers(0, columns, rows))
    labels.view(-1)[3::5] = options.get("ignore_index", -100)
    wide = torch.float64 if dtype == "float64" else torch.float32
    size = rows if options["reduction"] == "none" else ()
    g = torch.tensor(rng.standard_normal(size)).to(wide)
    return {**case, "labels": labels, "g": g, "options": options}


def run_torch(case: Case, operands: Any, chunk: int | None = None) -> Any:
    return bridge.torch.linear_cross_entropy(
        **operands, labels=case["labels"], chunk=chunk, bits="portable", **case["options"]
    )


def run_plain(case: Case, operands: Any) -> Any:
    logits = bridge.torch.linear(operands["hidden"], operands["weight"], operands.get("bias"))
    return bridge.torch.cross_entropy(logits, case["labels"], **case["options"])


def run_jax(case: Case, operands: Any, chunk: int | None = None) -> Any:
    labels = jnp.asarray(case["labels"].numpy())
    return bridge.jax.linear_cross_entropy(
        **operands, labels=labels, chunk=chunk, bits="portable", **case["options"]
    )


def operands_of(case: Case) -> dict[str, torch.Tensor]:
    return {name: case[name] for name in SMOOTH if name in case}


def everything_torch(case: Case, run: Any, *arguments: Any) -> list[torch.Tensor]:
    """Returns the loss and all gradients."""
    smooth = {name: x.clone().requires_grad_() for name, x in operands_of(case).items()}
    loss = run(case, smooth, *arguments)
    return [loss.detach(), *torch.autograd.grad(loss, list(smooth.values()), case["g"])]


def everything_jax(case: Case, *arguments: Any) -> list[Any]:
    smooth = {name: bridge.to_jax(x) for name, x in operands_of(case).items()}
    loss, back = jax.vjp(jax.jit(lambda given: run_jax(case, given, *arguments)), smooth)
    (found,) = back(bridge.to_jax(case["g"]))
    return [loss, *[found[name] for name in smooth]]


def all_same(ones: Any, others: Any) -> None:
    for one, other in zip(ones, others, strict=True):
        same(one, other)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("rows", [(), (1,), (3, 11), (256,), (700,), (1300,)])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("form", OPTIONS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_of_the_plain_form(
    dtype: str, form: str, has_bias: bool, rows: tuple[int, ...], rng: np.random.Generator
) -> None:
    """In both frameworks and chunks of any size; close to float64."""
    case = drawn(rng, form, dtype, rows, has_bias=has_bias)
    expected = everything_torch(case, run_plain)
    for chunk in (None, 1, 600):
        all_same(expected, everything_torch(case, run_torch, chunk))
    with jax.enable_x64(True):
        for chunk in (None, 256):
            all_same(expected, everything_jax(case, chunk))
    hidden, weight, bias = (case[name].double().numpy() if name in case else 0.0 for name in SMOOTH)
    logits = hidden @ weight.T + bias
    options = dict(case["options"])
    g = case["g"].double().numpy()
    loss, d = reference(logits, case["labels"].numpy(), g, options.pop("reduction"), **options)
    flat = d.reshape(-1, d.shape[-1])
    wanted = [loss, d @ weight, flat.T @ hidden.reshape(-1, hidden.shape[-1]), flat.sum(0)]
    for own, of_it in zip(expected, wanted, strict=False):
        largest = max(float(np.abs(of_it).max(initial=0.0)), 1e-3)
        np.testing.assert_allclose(
            own.double().numpy(), of_it, rtol=0, atol=60 * EPSILON[dtype] * largest
        )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_many_chunks(dtype: str, rng: np.random.Generator) -> None:
    """The sums over seven chunks are trees of one product and of one column sum."""
    case = drawn(rng, "mean", dtype, (1700,), columns=9, features=4)
    expected = everything_torch(case, run_plain)
    for chunk in (256, 511, 512, 1024, 2000):
        all_same(expected, everything_torch(case, run_torch, chunk))
        all_same(expected, everything_jax(case, chunk))


def test_labels(rng: np.random.Generator) -> None:
    """No label counts, no row exists, and labels of narrow or unsigned dtypes."""
    case = drawn(rng, "mean")
    case["labels"][:] = -100
    found = everything_torch(case, run_torch)
    for x in found:
        assert not x.any()
    all_same(found, everything_jax(case))
    empty = drawn(rng, "mean", rows=(0, 3))
    found = everything_torch(empty, run_torch)
    all_same(everything_torch(empty, run_plain), found)
    all_same(found, everything_jax(empty))
    case = drawn(rng, "all")
    expected = everything_torch(case, run_torch)
    for dtype in (torch.uint8, torch.int16, torch.uint64):
        narrow = {**case, "labels": case["labels"].to(dtype)}
        all_same(expected, everything_torch(narrow, run_torch))
        all_same(expected, everything_jax(narrow))
    narrow["options"] = {**case["options"], "ignore_index": -251}  # is 5 in 8 bits
    narrow["labels"] = case["labels"].to(torch.uint8)
    all_same(everything_torch(narrow, run_plain), everything_torch(narrow, run_torch))
    all_same(everything_torch(narrow, run_torch), everything_jax(narrow))


def test_threads(rng: np.random.Generator) -> None:
    case = drawn(rng, "all", rows=(700,), columns=300, features=40)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(everything_torch(case, run_torch))
    finally:
        torch.set_num_threads(before)
    all_same(found[0], found[1])
    all_same(found[0], found[2])


@pytest.mark.parametrize("form", ["all", "none"])
def test_forward_mode_and_second_derivatives(form: str, rng: np.random.Generator) -> None:
    """They have the same bits in both frameworks, over several chunks too."""
    case = drawn(rng, form, rows=(300,), columns=7, features=5)
    smooth = operands_of(case)
    moves = {n: torch.tensor(rng.standard_normal(x.shape)).float() for n, x in smooth.items()}
    arrays, directions = ({n: bridge.to_jax(x) for n, x in t.items()} for t in (smooth, moves))
    labels = case["labels"]

    def loss(*given: Any) -> Any:
        return run_torch(case, dict(zip(smooth, given, strict=True)), 1).square().sum()

    def loss_in_jax(given: Any) -> Any:
        return jnp.square(run_jax({**case, "labels": labels}, given, 1)).sum()

    given, along = tuple(smooth.values()), tuple(moves.values())
    y, dy = torch.func.jvp(
        lambda *x: run_torch(case, dict(zip(smooth, x, strict=True))), given, along
    )
    of_jax = jax.jvp(jax.jit(lambda x: run_jax(case, x)), (arrays,), (directions,))
    all_same([y, dy], of_jax)
    places = tuple(range(len(given)))
    gradient = torch.func.grad(loss, places)
    found = torch.func.jvp(gradient, given, along)
    theirs = jax.jvp(jax.jit(jax.grad(loss_in_jax)), (arrays,), (directions,))
    for own, their in zip(found, theirs, strict=True):
        all_same(own, [their[name] for name in smooth])
    leaves = [x.clone().requires_grad_() for x in given]
    first = torch.autograd.grad(loss(*leaves), leaves, create_graph=True)
    all_same(first, gradient(*given))
    second = torch.autograd.grad(first, leaves, along)

    def turned(x: Any) -> Any:
        pairs = zip(
            jax.tree.leaves(jax.grad(loss_in_jax)(x)), jax.tree.leaves(directions), strict=True
        )
        return sum((a * b).sum() for a, b in pairs)

    twice = jax.jit(jax.grad(turned))(arrays)
    for own, name, forward in zip(second, smooth, found[1], strict=True):
        torch.testing.assert_close(own, forward, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            bridge.to_torch(twice[name], copy=True), forward, rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("form", ["all", "none"])
def test_against_finite_differences(form: str, rng: np.random.Generator) -> None:
    case = drawn(rng, form, "float64", (5,), 4, 3)
    smooth = {name: x.requires_grad_() for name, x in operands_of(case).items()}

    def loss(*given: Any) -> Any:
        return run_torch(case, dict(zip(smooth, given, strict=True)))

    given = tuple(smooth.values())
    options: Any = {"check_batched_grad": True}
    assert torch.autograd.gradcheck(loss, given, check_forward_ad=True, **options)
    assert torch.autograd.gradgradcheck(loss, given, **options)
    with jax.enable_x64(True):
        arrays = {name: bridge.to_jax(x.detach()) for name, x in smooth.items()}
        jax.test_util.check_grads(lambda x: run_jax(case, x), (arrays,), order=2, rtol=1e-5)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("form", ["mean", "none"])
def test_compiled(form: str, dynamic: bool, rng: np.random.Generator) -> None:
    case = drawn(rng, form, rows=(300,))

    def run(case: Case, operands: Any) -> Any:
        return compiled(*operands.values())

    torch.compiler.reset()
    compiled = torch.compile(
        lambda *x: run_torch(case, dict(zip(SMOOTH, x, strict=True)), 256),
        fullgraph=True,
        backend="aot_eager",
        dynamic=dynamic,
    )
    all_same(everything_torch(case, run), everything_torch(case, run_torch))


def test_traces_hold_one_op(rng: np.random.Generator) -> None:
    case = drawn(rng, "none", rows=(600,))
    operands = operands_of(case)

    def run(*given: Any) -> Any:
        return run_torch(case, dict(zip(SMOOTH, given, strict=True)), 256)

    graph = make_fx(run)(*operands.values())
    names = [str(n.target) for n in graph.graph.nodes if "linear_cross" in str(n.target)]
    assert names == ["bridge.linear_cross_entropy_rows.default"]
    same(graph(*operands.values()), run(*operands.values()))

    class Model(torch.nn.Module):
        def forward(self, *given: Any) -> Any:
            return run(*given)

    exported = torch.export.export(Model(), tuple(operands.values()))
    same(exported.module()(*operands.values()), run(*operands.values()))
    smooth = [x.requires_grad_() for x in operands.values()]
    numbers = (-100, 0.1, 0.0, 0.0, 256)
    op = torch.ops.bridge.linear_cross_entropy_rows.default
    torch.library.opcheck(op, (*smooth, case["labels"], *numbers))
    backward = torch.ops.bridge.linear_cross_entropy_rows_backward.default
    given = (case["g"], *smooth, case["labels"], *numbers, [True, False, True])
    torch.library.opcheck(backward, given)


def test_vmap_and_scan(rng: np.random.Generator) -> None:
    case = drawn(rng, "all", rows=(3, 40))
    operands = operands_of(case)
    hidden, labels = operands.pop("hidden"), case["labels"]
    arrays = {name: bridge.to_jax(x) for name, x in operands.items()}

    def loss(h: Any, labels: Any, w: Any) -> Any:
        return run_torch({**case, "labels": labels}, {"hidden": h, **w})

    def loss_in_jax(h: Any, labels: Any, w: Any) -> Any:
        return bridge.jax.linear_cross_entropy(
            h, labels=labels, bits="portable", **case["options"], **w
        )

    found = torch.func.vmap(torch.func.grad_and_value(loss, 0), (0, 0, None))(
        hidden, labels, operands
    )
    given = bridge.to_jax(hidden), jnp.asarray(labels.numpy())
    both = jax.value_and_grad(loss_in_jax)
    theirs = jax.jit(jax.vmap(both, (0, 0, None)))(*given, arrays)
    all_same(found, theirs[::-1])
    _, again = jax.lax.scan(lambda _, x: (None, both(*x, arrays)), None, given)
    all_same(found, again[::-1])
    for i in range(3):
        alone = torch.func.grad_and_value(loss, 0)(hidden[i], labels[i], operands)
        all_same(alone, (found[0][i], found[1][i]))
    # A batch of labels alone.
    many = torch.func.vmap(loss, (None, 0, None))(hidden[0], labels, operands)
    same(many, jax.vmap(loss_in_jax, (None, 0, None))(given[0][0], given[1], arrays))
    same(many[1], loss(hidden[0], labels[1], operands))


def test_the_backward_pass_stores_the_operands_alone(rng: np.random.Generator) -> None:
    case = drawn(rng, "mean", rows=(600,))
    smooth = {name: x.requires_grad_() for name, x in operands_of(case).items()}
    stored: list[torch.Tensor] = []

    def store(x: torch.Tensor) -> torch.Tensor:
        stored.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(store, lambda x: x):
        run_torch(case, smooth)
    assert max(x.numel() for x in stored) == case["hidden"].numel()


def test_memory_in_jax_is_that_of_a_chunk() -> None:
    def used(rows: int) -> int:
        def loss(hidden: Any, weight: Any, labels: Any) -> Any:
            return bridge.jax.linear_cross_entropy(
                hidden, weight, labels, chunk=256, bits="portable"
            )

        shapes = (
            jax.ShapeDtypeStruct((rows, 4), jnp.float32),
            jax.ShapeDtypeStruct((4096, 4), jnp.float32),
            jax.ShapeDtypeStruct((rows,), jnp.int32),
        )
        program = jax.jit(jax.grad(loss, (0, 1))).lower(*shapes).compile()
        return program.memory_analysis().temp_size_in_bytes  # type: ignore[no-any-return]

    logits = 256 * 4096 * 4
    assert used(4096) < used(256) + logits


def test_autocast(rng: np.random.Generator) -> None:
    case = drawn(rng, "mean")
    with torch.autocast("cpu", torch.bfloat16):
        found = everything_torch(case, run_torch)
        expected = everything_torch(case, run_plain)
    all_same(found, expected)


def test_without_a_word_the_products_are_torchs(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("the composition runs")

    monkeypatch.setattr(in_torch._rows, "run", refuse)
    operands, labels = operands_of(case := drawn(rng, "mean")), case["labels"]
    assert bridge.torch.linear_cross_entropy(**operands, labels=labels).isfinite()


def test_the_module(rng: np.random.Generator) -> None:
    case = drawn(rng, "mean")
    module = bridge.torch.LinearCrossEntropyLoss(13, 71, bias=True, bits="portable")
    with torch.no_grad():
        module.linear.weight.copy_(case["weight"])
        module.linear.bias.copy_(case["bias"])
    same(module(case["hidden"], case["labels"]), run_torch(case, operands_of(case)))
    assert "bits='portable'" in repr(module)
