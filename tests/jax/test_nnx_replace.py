"""bridge.jax.nnx.replace, compared with the models themselves."""

from __future__ import annotations

import copy
import functools
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from bridge.jax.nnx import Replaced
from bridge.jax.nnx import replace as replace_all

optax = pytest.importorskip("optax")

# The layers of products have tests of their own.
replace = functools.partial(replace_all, products=False)


class LlamaNorm(nnx.Module):
    def __init__(self, features: int, eps: float = 1e-5) -> None:
        self.weight, self.eps = nnx.Param(jnp.linspace(0.5, 1.5, features)), eps

    def __call__(self, x: jax.Array) -> jax.Array:
        h = x.astype(jnp.float32)
        h = h * jax.lax.rsqrt(jnp.mean(h * h, -1, keepdims=True) + self.eps)
        return self.weight[...] * h.astype(x.dtype)


class GemmaNorm(nnx.Module):
    """A norm by 1 + scale with an eps in its code."""

    def __init__(self, features: int) -> None:
        self.scale = nnx.Param(jnp.linspace(-0.5, 0.5, features))

    def __call__(self, x: jax.Array) -> jax.Array:
        y = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6)
        return y * (1 + self.scale[...])


class MLP(nnx.Module):
    names = ("gate_proj", "up_proj", "down_proj")

    def __init__(self, features: int, rngs: nnx.Rngs, act: Any = nnx.silu, rate: float = 0.0):
        linear = functools.partial(nnx.Linear, use_bias=False, rngs=rngs)
        for name in self.names[:2]:
            setattr(self, name, linear(features, 3 * features))
        setattr(self, self.names[2], linear(3 * features, features))
        self.act_fn, self.dropout = act, nnx.Dropout(rate, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        gate, up, down = (getattr(self, name) for name in self.names)
        return down(self.dropout(self.act_fn(gate(x)) * up(x)))


class Block(nnx.Module):
    def __init__(self, features: int, rngs: nnx.Rngs) -> None:
        self.norms = nnx.List([LlamaNorm(features), GemmaNorm(features)])
        self.norm = nnx.LayerNorm(features, rngs=rngs)
        self.tied = self.norm
        self.mlp = MLP(features, rngs, rate=0.1)
        self.act = functools.partial(nnx.gelu, approximate=False)
        self.out = nnx.Sequential(nnx.Linear(features, features, rngs=rngs), nnx.gelu)
        self.group = nnx.GroupNorm(features, num_groups=2, rngs=rngs)
        self.loss_fn = optax.softmax_cross_entropy_with_integer_labels

    def __call__(self, x: jax.Array) -> jax.Array:
        for norm in self.norms:
            x = x + self.mlp(norm(x))
        return self.tied(self.group(self.out(self.act(self.norm(x)))))

    def loss(self, x: jax.Array, labels: jax.Array) -> jax.Array:
        return self.loss_fn(self(x), labels).mean()


DONE = {
    "norms.0": "rms_norm",
    "norms.1": "rms_norm",
    "norm": "layer_norm",
    "mlp": "glu, silu",
    "mlp.gate_proj": "linear",
    "mlp.up_proj": "linear",
    "mlp.down_proj": "linear",
    "out.layers.0": "linear",
    "group": "group_norm",
    "act": "bias_gelu, none",
    "out.layers.1": "bias_gelu, tanh",
    "loss_fn": "cross_entropy",
}


def block(seed: int = 0) -> Block:
    return Block(10, nnx.Rngs(seed, dropout=1))


def close(found: Any, expected: Any, bound: float = 1e-5) -> None:
    scale = np.abs(np.asarray(expected, np.float64)).max()
    assert np.shape(found) == np.shape(expected)
    np.testing.assert_allclose(found, expected, rtol=0, atol=bound * scale + 1e-30)


@pytest.fixture(scope="module")
def replaced() -> tuple[Block, Replaced]:
    model = block()
    return model, replace_all(model)


@pytest.fixture
def x(rng: np.random.Generator) -> jax.Array:
    return jnp.asarray(rng.standard_normal((3, 5, 10)) * 3 + 0.5, jnp.float32)


@pytest.fixture
def labels(rng: np.random.Generator) -> jax.Array:
    return jnp.asarray(rng.integers(-10, 10, (3, 5)))


def test_a_replaced_model_computes_what_it_computed(
    replaced: tuple[Block, Replaced], x: jax.Array, labels: jax.Array
) -> None:
    mine, report = replaced
    original = block()
    assert report.done == DONE
    assert not report.left
    assert jax.tree.structure(nnx.state(mine)) == jax.tree.structure(nnx.state(original))
    for (path, one), (other_path, other) in zip(
        nnx.iter_modules(mine), nnx.iter_modules(original), strict=True
    ):
        assert path == other_path
        assert isinstance(one, type(other))
        assert type(one).__name__ == type(other).__name__
    for mode in ("train", "eval"):  # the streams of both models advance alike
        getattr(mine, mode)()
        getattr(original, mode)()
        close(mine(x), original(x))
        gradients, expected = (
            nnx.grad(lambda model: model.loss(x, labels))(model) for model in (mine, original)
        )
        for one, other in zip(*map(jax.tree.leaves, (gradients, expected)), strict=True):
            close(one, other, 2e-4)


def test_transforms(replaced: tuple[Block, Replaced], x: jax.Array) -> None:
    mine, _ = replaced
    mine.eval()
    expected, traces = mine(x), []

    @nnx.jit
    def forward(model: Block, x: jax.Array) -> jax.Array:
        traces.append(None)
        return model(x)

    for model in (mine, mine, nnx.clone(mine)):
        close(forward(model, x), expected)
    assert len(traces) == 1
    close(copy.deepcopy(mine)(x), expected)
    definition, state = nnx.split(mine)
    assert definition == nnx.split(mine)[0]
    close(jax.jit(lambda state, x: nnx.merge(definition, state)(x))(state, x), expected)
    close(nnx.remat(lambda model, x: model(x))(mine, x), expected)
    original = block()
    original.eval()
    mine_of, theirs = ((lambda x, m=m: nnx.merge(*m)(x)) for m in map(nnx.split, (mine, original)))
    close(jax.vmap(mine_of)(x), jax.vmap(theirs)(x))
    norm = pickle.loads(pickle.dumps(mine.norm))
    assert type(norm) is type(mine.norm)
    np.testing.assert_array_equal(norm(x), mine.norm(x))
    assert pickle.loads(pickle.dumps(nnx.split(mine.norm)[0])) == nnx.split(mine.norm)[0]


def test_layers_stacked_for_scan(x: jax.Array) -> None:
    """Their parameters are vectors only inside of the scan."""

    @nnx.split_rngs(splits=3)
    @nnx.vmap
    def stacked(rngs: nnx.Rngs) -> nnx.Module:
        return nnx.Sequential(nnx.RMSNorm(10, rngs=rngs), nnx.Linear(10, 10, rngs=rngs))

    @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
    def run(x: jax.Array, layer: Any) -> jax.Array:
        return x + layer(x)

    mine, original = stacked(nnx.Rngs(3)), stacked(nnx.Rngs(3))
    assert replace_all(mine).done == {"layers.0": "rms_norm", "layers.1": "linear"}
    close(run(x, mine), run(x, original))
    jaxpr = str(
        jax.make_jaxpr(lambda state, x: run(x, nnx.merge(nnx.graphdef(mine), state)))(
            nnx.state(mine), x
        )
    )
    assert "bridge" in jaxpr


def test_parameters_that_are_no_vectors_since(x: jax.Array) -> None:
    model, original = nnx.List([GemmaNorm(10)]), GemmaNorm(10)
    assert replace(model).done
    scale = jnp.linspace(-1.0, 1.0, 50).reshape(5, 10)
    model[0].scale = nnx.Param(scale)
    original.scale = nnx.Param(scale)
    np.testing.assert_array_equal(model[0](x), original(x))


def test_undo_and_again(x: jax.Array) -> None:
    model = nnx.Sequential(nnx.LayerNorm(10, rngs=nnx.Rngs(0)), nnx.gelu, GemmaNorm(10))
    kinds, expected = [type(m) for _, m in nnx.iter_modules(model)], model(x)
    report = replace(model)
    assert str(report) == "1 × layer_norm\n1 × rms_norm\n1 × bias_gelu, tanh"
    again = replace(model)
    assert not again.done
    assert again.before == report.done
    assert "1 × rms_norm, replaced by an earlier call" in str(again)
    report.undo()
    assert [type(m) for _, m in nnx.iter_modules(model)] == kinds
    assert model.layers[1] is nnx.gelu
    np.testing.assert_array_equal(model(x), expected)
    assert not report.done
    assert str(replace(nnx.Linear(2, 2, rngs=nnx.Rngs(0)))) == "nothing"
    report = replace(model, activations=False)
    assert set(report.done.values()) == {"layer_norm", "rms_norm"}
    object.__setattr__(model.layers[2], "__class__", GemmaNorm)
    with pytest.raises(RuntimeError, match=r"layers\.2 has changed its class to GemmaNorm since"):
        report.undo()


def test_an_abstract_model(x: jax.Array) -> None:
    """Its state is loaded after the replacement, as from a checkpoint."""
    original = block(4)
    model = nnx.eval_shape(block)
    replace(model)
    mine = nnx.merge(nnx.graphdef(model), nnx.state(original))
    assert "replaces" in dir(type(mine.mlp))
    mine.eval()
    original.eval()
    close(mine(x), original(x))


def test_calls_that_are_refused_change_nothing(x: jax.Array) -> None:
    model = nnx.Sequential(nnx.LayerNorm(10, rngs=nnx.Rngs(0)))
    with pytest.raises(TypeError, match=r"model has type \S*function, expected a flax\.nnx\.Mod"):
        replace(lambda x: x)  # type: ignore[arg-type]

    def inside(model: Any, x: jax.Array) -> jax.Array:
        replace(model)
        return model(x).sum()

    message = "replace: the call is inside of jit, grad or another transformation, expected"
    for transform in (nnx.jit, nnx.grad):
        with pytest.raises(ValueError, match=message):
            transform(inside)(model, x)
    with pytest.raises(ValueError, match=message):
        jax.jit(functools.partial(inside, model))(x)
    assert type(model.layers[0]) is nnx.LayerNorm


class Closed(nnx.Module):
    """A module whose attributes cannot be set again."""

    def __init__(self) -> None:
        self.norm, self.act = nnx.LayerNorm(10, rngs=nnx.Rngs(0)), nnx.gelu

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(self, name):
            raise AttributeError(f"{name} is set")
        super().__setattr__(name, value)


def test_a_model_is_never_half_replaced() -> None:
    model = Closed()
    with pytest.raises(AttributeError, match="act is set"):
        replace(model)
    assert type(model.norm) is nnx.LayerNorm


NORMS = {
    "rms": (lambda: nnx.RMSNorm(10, epsilon=1e-3, rngs=nnx.Rngs(0)), "rms_norm"),
    "bare": (
        lambda: nnx.LayerNorm(10, use_scale=False, use_bias=False, rngs=nnx.Rngs(0)),
        "layer_norm",
    ),
    "16 bits": (lambda: nnx.LayerNorm(10, dtype=jnp.bfloat16, rngs=nnx.Rngs(0)), "layer_norm"),
    "slow": (lambda: nnx.LayerNorm(10, use_fast_variance=False, rngs=nnx.Rngs(0)), "layer_norm"),
    "own eps": (lambda: LlamaNorm(10, 1e-3), "rms_norm"),
    "of columns": (lambda: nnx.RMSNorm(10, reduction_axes=0, feature_axes=0, rngs=nnx.Rngs(0)), ""),
    "of two axes": (lambda: nnx.LayerNorm(10, reduction_axes=(-2, -1), rngs=nnx.Rngs(0)), ""),
    "instance": (lambda: nnx.InstanceNorm(10, rngs=nnx.Rngs(0)), ""),
    "batch": (lambda: nnx.BatchNorm(10, rngs=nnx.Rngs(0)), "batch_norm"),
}


@pytest.mark.parametrize("kind", NORMS)
def test_norms(kind: str, x: jax.Array) -> None:
    make, op = NORMS[kind]
    model, original = (nnx.Sequential(make()) for _ in range(2))
    report = replace(model)
    assert [*report.done.values()] == [op] * bool(op)
    assert bool(report.left) == (not op)
    for layer in (model, original):
        parameters = nnx.to_flat_state(nnx.state(layer, nnx.Param))
        for seed, (_, parameter) in enumerate(parameters):
            parameter.set_value(jnp.linspace(-1.0, 2.0 + seed, 10))
        nnx.update(layer, nnx.from_flat_state(parameters))
    x = jnp.concatenate([x] * 4)[:10]
    close(model(x).astype(float), original(x).astype(float), 2.0**-6 if "16" in kind else 1e-5)
    assert model(x).dtype == original(x).dtype


def test_a_mask_and_other_arguments_go_to_the_original(x: jax.Array) -> None:
    rngs = nnx.Rngs(0)
    model = nnx.List([nnx.LayerNorm(10, rngs=rngs), nnx.gelu, MLP(10, rngs)])
    originals = [model[0], nnx.gelu]
    expected_of = nnx.clone(model)
    assert len(replace(model).done) == 3
    mask = jnp.arange(10) < 7
    np.testing.assert_array_equal(model[0](x, mask=mask), expected_of[0](x, mask=mask))
    assert "bridge" in str(jax.make_jaxpr(lambda x: model[0](x, mask=None))(x))
    integers = jnp.arange(10)
    np.testing.assert_array_equal(model[0](integers), expected_of[0](integers))
    exact = jax.nn.gelu(x, approximate=False)
    np.testing.assert_array_equal(model[1](x, approximate=False), exact)
    np.testing.assert_array_equal(model[1](x, False), exact)
    assert model[1](2.0) == jax.nn.gelu(2.0)
    assert "bridge" in str(jax.make_jaxpr(lambda x: model[2](x=x))(x))
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        model[2]()
    assert originals[1] is model[1].original


class Swapped(MLP):
    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down_proj(self.gate_proj(x) * self.act_fn(self.up_proj(x)))


class LastDropout(MLP):
    def __call__(self, x: jax.Array) -> jax.Array:
        gate = self.act_fn(self.gate_proj(x))
        return self.dropout(self.down_proj(gate * self.up_proj(x)))


class Mixtral(MLP):
    names = ("w1", "w3", "w2")


class Scoped(MLP):
    @jax.named_scope("feed_forward")
    @jax.named_scope("mlp")
    def __call__(self, x: jax.Array) -> jax.Array:
        return super().__call__(x)


class Remat(MLP):
    __call__ = nnx.remat(MLP.__call__)


class Sown(MLP):
    def __call__(self, x: jax.Array) -> jax.Array:
        self.sow(nnx.Intermediate, "x", x)
        return super().__call__(x)


class Experts(nnx.Module):
    def __init__(self) -> None:
        for name in ("gate_proj", "up_proj", "down_proj"):
            setattr(self, name, nnx.Param(jnp.zeros((2, 10, 10))))


class Normed(MLP):
    def __init__(self, features: int, rngs: nnx.Rngs) -> None:
        super().__init__(features, rngs)
        self.norm = nnx.LayerNorm(features, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return super().__call__(self.norm(x))


class ByName(nnx.Module):
    def __call__(self, x: jax.Array) -> jax.Array:
        return nnx.gelu(x)


class Quantised(nnx.Module):
    def __init__(self) -> None:
        self.scale, self.eps = nnx.Param(jnp.ones(10, jnp.int8)), 1e-6

    def __call__(self, x: jax.Array) -> jax.Array:
        return x * self.scale[...]


def test_layers_that_compute_something_else_are_left(x: jax.Array) -> None:
    rngs = nnx.Rngs(0, dropout=2)
    layers = [
        *(Swapped(10, rngs), Remat(10, rngs), Sown(10, rngs), Experts(), Normed(10, rngs)),
        *(ByName(), Quantised(), Mixtral(10, rngs), MLP(10, rngs, nnx.tanh)),
    ]
    model = nnx.List(layers)
    report = replace(model)
    assert report.done == {"4.norm": "layer_norm", "7": "glu, silu"}
    assert report.left == {
        "0": "it computes something else",
        "1": "its __call__ is wrapped, as by nnx.jit or nnx.remat: expected a plain method",
        "2": "its call changes its variables",
        "3": "it holds the weights of its projections itself: expected a module for each",
        "4": "it has other parameters than those of its projections",
        "5": "its __call__ calls gelu by its name: keep the function in an attribute that replace "
        "can set, or call bridge.jax.bias_gelu",
        "6": "its parameters are no floating-point arrays, as in quantised layers",
        "8": "it computes something else",
    }
    assert "left 2, such as 0, 8: it computes something else" in str(report)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("act", "op"),
    [
        (nnx.gelu, "gelu_tanh"),
        (functools.partial(nnx.gelu, approximate=False), "gelu"),
        (nnx.relu, "relu"),
    ],
)
def test_mlps(act: Any, op: str, dtype: str, x: jax.Array) -> None:
    x = x.astype(dtype)
    kind = LastDropout if op == "relu" else MLP
    model, original = (kind(10, nnx.Rngs(5, dropout=6), act, 0.25) for _ in range(2))
    assert replace(model, activations=False).done == {"": f"glu, {op}"}
    for _ in range(2):
        close(model(x).astype(float), original(x).astype(float), 1e-5 if x.itemsize > 2 else 0.02)


class Named(MLP):
    def __call__(self, x: jax.Array) -> jax.Array:
        return checkpoint_name(super().__call__(x), "mlp")


class Printing(MLP):
    def __call__(self, x: jax.Array) -> jax.Array:
        jax.debug.print("{}", x.sum())
        return super().__call__(x)


class Sharded(MLP):
    def __call__(self, x: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(super().__call__(x), PartitionSpec("rows"))


def test_layers_that_do_more_than_compute_are_left(x: jax.Array) -> None:
    rngs = nnx.Rngs(0)
    axes = jax.sharding.AxisType.Auto
    with jax.set_mesh(jax.make_mesh((1,), ("rows",), axis_types=(axes,))):
        report = replace(nnx.List([kind(10, rngs) for kind in (Named, Printing, Sharded, MLP)]))
    assert report.done == {"3": "glu, silu"}
    assert report.left == {
        "0": "it names values inside, as for a checkpoint policy",
        "1": "its call has effects, such as jax.debug.print",
        "2": "it constrains the sharding of values inside",
    }


def test_a_named_scope_stays(x: jax.Array) -> None:
    model = Scoped(10, nnx.Rngs(0))
    expected = model(x)
    assert replace(model).done == {"": "glu, silu"}
    close(model(x), expected)
    definition, state = nnx.split(model)
    compiled = jax.jit(lambda state, x: nnx.merge(definition, state)(x)).lower(state, x)
    assert "feed_forward/mlp/" in compiled.compile().as_text()
    assert "bridge" in compiled.as_text()


def mean_of_known(logits: jax.Array, labels: jax.Array) -> jax.Array:
    known = labels != -100
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.where(known, labels, 0))
    return jnp.where(known, losses, 0.0).sum() / known.sum()


def test_losses(x: jax.Array, labels: jax.Array) -> None:
    class Losses(nnx.Module):
        def __init__(self) -> None:
            self.loss_fn = optax.softmax_cross_entropy_with_integer_labels
            self.cross_entropy = mean_of_known
            self.loss_of_probabilities = optax.softmax_cross_entropy
            self.loss_weight = 0.5

    model, original = Losses(), Losses()
    report = replace(model)
    assert report.done == dict.fromkeys(("loss_fn", "cross_entropy"), "cross_entropy")
    assert [*report.left] == ["loss_of_probabilities"]
    ignoring = labels.at[0].set(-100)
    for name, given in (("loss_fn", labels), ("cross_entropy", ignoring)):
        ours, theirs = (getattr(m, name) for m in (model, original))
        for z in (x, x.astype(jnp.bfloat16)):
            assert ours(z, given).dtype == theirs(z, given).dtype
        close(ours(x, given), theirs(x, given))
        gradients = (
            jax.grad(lambda x, f=f, given=given: f(x, given).sum())(x) for f in (ours, theirs)
        )
        close(*gradients, 1e-4)
    along = jnp.zeros((5, 10), jnp.int32)
    close(model.loss_fn(x, along, axis=0), original.loss_fn(x, along, axis=0))
    given = jnp.where(jnp.arange(10) < 4, x, 0), along[..., 0]
    where = jnp.ones((5, 10), bool)
    close(
        model.loss_fn(given[0][0], given[1], where=where),
        original.loss_fn(given[0][0], given[1], where=where),
    )
