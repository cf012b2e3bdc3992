"""Bad input of from_torch: each error names the given and the expected value."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
import torch
from jax import export
from jax import numpy as jnp
from torch import nn

from bridge.jax import from_torch

identity = from_torch(lambda x, **_: x + 0)


@pytest.fixture
def x() -> Any:  # not at import, which would start JAX before other tests choose its devices
    return jnp.ones(3)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"fn": 3}, TypeError, "fn has type int, expected a function or a module"),
        ({"train": 1}, TypeError, "train is 1, expected True or False"),
        ({"train": True}, TypeError, "train is True, but fn has type builtin_function"),
        ({"seeded": None}, TypeError, "seeded is None, expected True or False"),
        ({"vmap_method": "loop"}, ValueError, "vmap_method is 'loop', expected None or one of 'vm"),
        (
            {"fn": nn.LazyLinear(3)},
            ValueError,
            "parameter 'weight' is lazy and has no shape yet: run the module once",
        ),
        (
            {"fn": nn.LazyBatchNorm1d(affine=False)},
            ValueError,
            "buffer 'running_mean' is lazy and has no shape yet: run the module once",
        ),
    ],
)
def test_options(options: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        from_torch(**{"fn": torch.sin, **options})


class Doubled:
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def called(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (torch.tanh, "torch.tanh"),
        (torch.Tensor.tanh, "torch.Tensor.tanh"),
        (torch.ones(3).mul, "torch.Tensor.mul"),
        (torch.einsum, "torch.einsum"),
        (nn.functional.gelu, "torch.nn.functional.gelu"),
        (nn.functional.relu, "torch.nn.functional.relu"),
        (nn.functional.logsigmoid, "torch.nn.functional.logsigmoid"),
        (torch.linalg.norm, "torch.linalg.norm"),
        (torch.ops.aten.tanh.default, "torch.ops.aten.tanh.default"),
        (torch.vmap(torch.tanh), "torch.tanh"),
        (partial(torch.sum, dim=0), "torch.sum"),
        (lambda x: x, "<lambda>"),
        (Doubled(), "Doubled"),
        (Doubled().called, "Doubled.called"),
        (nn.Tanh(), "Tanh"),
    ],
)
def test_functions_have_their_public_names(fn: Any, name: str) -> None:
    assert repr(from_torch(fn)) == f"<from_torch {name}>"


def test_a_message_has_the_public_name(x: Any) -> None:
    with pytest.raises(TypeError, match="returned a leaf") as raised:
        from_torch(torch.Tensor.tolist)(x)
    assert str(raised.value).startswith("from_torch: torch.Tensor.tolist returned a leaf")


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_scripted_modules_are_refused() -> None:
    with pytest.raises(TypeError, match=r"RecursiveScriptModule, expected a plain torch.nn module"):
        from_torch(torch.jit.script(nn.Linear(2, 2)))


def test_modules_that_cannot_be_copied_are_refused() -> None:
    module = nn.Linear(2, 2)
    module.generator = (i for i in range(3))  # type: ignore[assignment]
    with pytest.raises(TypeError, match=r"Linear, cannot be copied \(cannot pickle 'generator'"):
        from_torch(module)


@pytest.mark.parametrize("where", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(
    ("fn", "error", "message"),
    [
        (lambda x: [x, {"a": 3}], TypeError, "returned a leaf of type int, expected torch tensors"),
        (lambda x: x.numpy, TypeError, "leaf of type builtin_function_or_method"),
        (
            lambda x: x.double(),
            ValueError,
            r"float64, shape \(3,\), which JAX narrows.*jax_enable_x",
        ),
        (
            lambda x: x.to(torch.float8_e4m3fnuz),
            TypeError,
            "float8_e4m3fnuz, expected one of float16, bfloat16",
        ),
        (lambda x: x.add_(1), ValueError, r"writes to args\[0\] in place \(aten.add_.Tensor\)"),
        (
            lambda x: torch.rand(3),
            ValueError,
            r"draws random numbers \(aten.rand.default\).*seeded",
        ),
    ],
)
def test_functions(x: Any, where: Any, fn: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        where(from_torch(fn))(x)
    np.testing.assert_array_equal(x, np.ones(3))


def test_leaves(x: Any) -> None:
    with pytest.raises(TypeError, match=r"args\[0\]\['a'\] is a torch tensor.*bridge.to_jax"):
        from_torch(torch.sin)({"a": torch.ones(3)})
    with pytest.raises(TypeError, match=r"args\[0\] has dtype key<fry>, .*pass a key as seed="):
        identity(jax.random.key(0))
    with pytest.raises(TypeError, match=r"args\[0\] has dtype int4, expected one of float16"):
        identity(jnp.ones(3, jnp.int4))
    with pytest.raises(TypeError, match=r"option\[1\] has type set, expected an array, or a value"):
        identity(x, option=[1, {2}])
    with pytest.raises(ValueError, match=r"args\[0\] is a NumPy array of float64.*jax_enable_x64"):
        identity(np.ones(3))
    deleted = jnp.ones(3)
    deleted.delete()
    with pytest.raises(ValueError, match=r"deleted or donated"):
        identity(deleted)


def test_results_that_depend_on_values_must_be_stated(x: Any) -> None:
    g = from_torch(lambda x: x[x > 0])
    assert g(jnp.asarray([1.0, -1.0])).shape == (1,)
    with pytest.raises(ValueError, match=r"depend on values.*pass result_shape="):
        jax.jit(g)(x)
    with pytest.raises(ValueError, match=r"cannot be seen without values.*pass result_shape="):
        jax.jit(from_torch(lambda x: torch.from_numpy(np.sin(x.numpy()))))(x)
    with pytest.raises(TypeError, match=r"result_shape holds 3, expected jax.ShapeDtypeStruct"):
        jax.jit(from_torch(torch.sin, result_shape=[3]))(x)


def test_through_numpy_with_a_stated_shape(x: Any) -> None:
    g = from_torch(lambda x: torch.from_numpy(np.sin(x.numpy())), result_shape=lambda x: x)
    np.testing.assert_allclose(jax.jit(g)(x), np.sin(1.0) * np.ones(3), rtol=1e-6)


def test_vmap_needs_a_method(x: Any) -> None:
    with pytest.raises(
        ValueError, match=r"under jax.vmap needs vmap_method= .*'vmap', 'sequential'"
    ):
        jax.vmap(identity)(x)
    g = from_torch(lambda x: x.sum(), vmap_method="broadcast_all")
    with pytest.raises(ValueError, match=r"leading dimension of 3.*has shape \[\]"):
        jax.vmap(g)(jnp.ones((3, 2)))


def test_seeds(x: Any) -> None:
    g = from_torch(torch.rand_like, seeded=True, vmap_method="vmap")
    with pytest.raises(TypeError, match=r"is seeded, and seed is missing: pass seed="):
        g(x)
    with pytest.raises(TypeError, match=r"from_torch: seed"):
        g(x, seed=1.5)
    with pytest.raises(ValueError, match=r"over seeds needs vmap_method='sequential', not 'vmap'"):
        jax.vmap(lambda s: g(x, seed=s))(jnp.arange(3))


def test_modules() -> None:
    g = from_torch(nn.BatchNorm1d(3), train=True)
    params, buffers, batch = g.params(), g.buffers(), jnp.ones((2, 3))
    with pytest.raises(TypeError, match=r"the first is a .*Array.*, expected a dict like g.params"):
        g(batch)
    with pytest.raises(TypeError, match=r"there is none, expected"):
        g()
    with pytest.raises(ValueError, match=r"params lacks \['weight'\] and has \['w'\]"):
        g({"w": params["weight"], "bias": params["bias"]}, batch)
    with pytest.raises(ValueError, match=r"params\['weight'\] has shape \[2\], expected \[3\]"):
        g({**params, "weight": jnp.ones(2)}, batch)
    with pytest.raises(TypeError, match=r"params\['weight'\] has type float, expected an array"):
        g({**params, "weight": 1.0}, batch)
    with pytest.raises(TypeError, match=r"buffers has type list, expected a dict like g.buffers"):
        g(params, batch, buffers=[1])
    with pytest.raises(ValueError, match=r"buffers lacks"):
        g(params, batch, buffers={})
    for where in (lambda f: f, jax.jit):
        with pytest.raises(ValueError, match=r"writes to its buffer.*pass buffers=g.buffers()"):
            where(g)(params, batch)
    y, _ = g(params, batch, buffers=buffers)
    assert y.shape == (2, 3)
    with pytest.raises(TypeError, match=r"is a function, and has no params\(\)"):
        identity.params()


def test_wide_values_in_buffers_that_do_not_fit() -> None:
    module = nn.BatchNorm1d(3)
    assert module.num_batches_tracked is not None
    module.num_batches_tracked.fill_(1 << 40)
    with pytest.raises(ValueError, match=r"do not fit into 32 bits"):
        from_torch(module).buffers()


@pytest.mark.parametrize("where", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(("flag", "bad"), [(jax.debug_nans, "nan"), (jax.debug_infs, "inf")])
def test_debug_flags_name_the_function(x: Any, where: Any, flag: Any, bad: str) -> None:
    square = from_torch(torch.square)

    def backward(x: Any, g: Any) -> Any:
        return jax.vjp(square, x)[1](g)[0]

    special = x.at[1].set(float(bad))
    with flag(True):
        where(backward)(x, x)
        for call in (lambda: where(square)(special), lambda: where(backward)(x, special)):
            with pytest.raises(
                FloatingPointError, match=rf"\({bad}\) encountered in from_torch: .*square"
            ):
                call()


@pytest.mark.parametrize("transform", [lambda f: f, jax.vmap])
@pytest.mark.parametrize("result_shape", [None, lambda x: x])
def test_symbolic_shapes_are_refused(transform: Any, result_shape: Any) -> None:
    f = from_torch(torch.sin, vmap_method="vmap", result_shape=result_shape)
    x = jax.ShapeDtypeStruct(export.symbolic_shape("b, 8"), jnp.float32)
    with pytest.raises(ValueError, match=r"sin is called with .* symbolic shape \[b, 8\]"):
        export.export(jax.jit(transform(f)))(x)
