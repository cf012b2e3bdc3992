"""Conversions that share memory and conversions that copy: the table of docs/exchange.md."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import bridge
import bridge.jax
from bridge.exchange import from_array, from_tensor, runtime
from tests.exchange.values import (
    DTYPES,
    NAMES,
    address_of,
    array_of,
    bits_of,
    random_bits,
    tensor_of,
)


@pytest.fixture(autouse=True)
def x64() -> Any:
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("copy", [None, False, True])
@pytest.mark.parametrize("shape", [(3, 5), (64,), (), (0, 4), (2, 1, 3)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES)
def test_every_dtype_crosses_bit_for_bit(
    dtype: torch.dtype, shape: tuple[int, ...], copy: bool | None, rng: np.random.Generator
) -> None:
    values = random_bits(rng, shape, dtype)
    tensor = tensor_of(values, dtype)
    array = bridge.to_jax(tensor, copy=copy)
    assert isinstance(array, jax.Array)
    assert (array.shape, array.dtype) == (values.shape, values.dtype)
    assert bits_of(array) == values.tobytes()
    if values.size:
        assert (address_of(array) == address_of(tensor)) is (copy is not True)

    array = array_of(values)
    tensor = bridge.to_torch(array, copy=copy)
    assert type(tensor) is torch.Tensor
    assert (tuple(tensor.shape), tensor.dtype) == (values.shape, dtype)
    assert bits_of(tensor) == values.tobytes()
    if values.size:
        assert (address_of(array) == address_of(tensor)) is (copy is not True)


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"])
def test_dtypes_that_dlpack_does_not_know_go_as_bytes(
    dtype: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This simulates a torch or jaxlib older than DLPack's codes for 8-bit floats."""

    def tensor_to_capsule(tensor: torch.Tensor) -> Any:
        if tensor.dtype == getattr(torch, dtype):
            raise BufferError("no code")
        return torch.utils.dlpack.to_dlpack(tensor)

    def array_to_capsule(array: Any) -> Any:
        if array.dtype == dtype:
            raise RuntimeError("no code")
        return array.__dlpack__()

    monkeypatch.setattr(from_tensor, "tensor_to_capsule", tensor_to_capsule)
    monkeypatch.setattr(from_array, "array_to_capsule", array_to_capsule)
    values = random_bits(rng, (5, 7), getattr(torch, dtype))
    tensor, array = tensor_of(values, getattr(torch, dtype)), array_of(values)
    for copy in (None, True):
        assert bits_of(bridge.to_jax(tensor, copy=copy)) == values.tobytes()
        assert bridge.to_jax(tensor, copy=copy).dtype == dtype
        assert bits_of(bridge.to_torch(array, copy=copy)) == values.tobytes()
        assert bridge.to_torch(array, copy=copy).dtype == tensor.dtype
    for function, leaf in ((bridge.to_jax, tensor), (bridge.to_torch, array)):
        with pytest.raises(BufferError, match="does not know"):
            function(leaf, copy=False)


def test_without_jaxlibs_own_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """If jaxlib lacks them, the public from_dlpack of each framework does the same."""
    monkeypatch.setattr(runtime, "_export", None)
    monkeypatch.setattr(from_tensor, "capsule_to_array", runtime._import_publicly)
    tensor, array = torch.randn(4, 6), jnp.arange(8.0)
    assert address_of(bridge.to_jax(tensor, copy=False)) == address_of(tensor)
    assert address_of(bridge.to_torch(array, copy=False)) == address_of(array)
    strided = tensor[:, ::2]
    np.testing.assert_array_equal(np.asarray(bridge.to_jax(strided)), strided.numpy())
    misaligned = torch.randn(65)[1:]
    np.testing.assert_array_equal(np.asarray(bridge.to_jax(misaligned)), misaligned.numpy())
    for refused in (strided, misaligned):
        with pytest.raises(BufferError):
            bridge.to_jax(refused, copy=False)


def test_there_and_back_is_the_same_memory() -> None:
    tensor = torch.randn(6, 7)
    assert bridge.to_torch(bridge.to_jax(tensor)).data_ptr() == tensor.data_ptr()
    array = jnp.arange(12.0).reshape(3, 4)
    assert address_of(bridge.to_jax(bridge.to_torch(array))) == address_of(array)


@pytest.mark.parametrize("copy", [None, False])
def test_permuted_compact_shares_memory(copy: bool | None) -> None:
    block = torch.randn(4, 3, 5)
    for view in (block.permute(2, 0, 1), block.mT, block[:1], block[2], block[:, :, None]):
        if address_of(view) % 64:
            continue
        array = bridge.to_jax(view, copy=copy)
        assert address_of(array) == address_of(view)
        np.testing.assert_array_equal(np.asarray(array), view.numpy())
    one = torch.as_strided(block, (1, 3, 1), (77, 1, 555))  # the stride of size 1 has no meaning
    assert address_of(bridge.to_jax(one, copy=copy)) == address_of(block)


@pytest.mark.parametrize("order", [(2, 0, 1), (0, 2, 1), (1, 0, 2), (2, 1, 0)], ids=str)
def test_computations_on_permuted_memory(order: tuple[int, ...]) -> None:
    """JAX keeps the order of the dimensions in memory, and compiles a function for each."""
    tensor = torch.randn(4, 6, 8).permute(order)
    array, values = bridge.to_jax(tensor, copy=False), tensor.numpy()
    cumulated = jax.jit(lambda x: jnp.cumsum(x, axis=1))
    cumulated(jnp.array(values))  # compiled for the usual order first
    np.testing.assert_allclose(cumulated(array), np.cumsum(values, 1), rtol=1e-5)
    flat = jax.jit(lambda x: x.reshape(-1) * 2)
    np.testing.assert_array_equal(flat(array), 2 * values.reshape(-1))
    gradient = jax.grad(lambda x: (x**3).sum())(array)
    np.testing.assert_allclose(gradient, 3 * values**2, rtol=1e-5)
    donated = jax.jit(lambda x: x, donate_argnums=0)(bridge.to_jax(tensor))
    np.testing.assert_array_equal(donated, values)
    called = jax.pure_callback(np.asarray, jax.ShapeDtypeStruct(array.shape, array.dtype), array)
    np.testing.assert_array_equal(called, values)
    softmax = bridge.jax.scaled_softmax(array)
    np.testing.assert_allclose(softmax, jax.nn.softmax(jnp.array(values), -1), rtol=1e-5)
    ahead = flat.lower(jax.ShapeDtypeStruct(array.shape, array.dtype)).compile()
    with pytest.raises(ValueError, match="layout"):
        ahead(array)
    home = bridge.to_torch(array)
    assert home.stride() == tensor.stride()
    assert torch.equal(home, tensor)


VIEWS = {
    "sliced": lambda t: t[:, ::2],
    "narrow": lambda t: t[:, 1:4],
    "expanded": lambda t: t[:, :1].expand(6, 8),
    "scalar expanded": lambda t: t[0, 0].expand(3, 4),  # such as the cotangent of sum()
    "diagonal": lambda t: t.diagonal(),
    "overlapping": lambda t: t.as_strided((3, 4), (2, 1)),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_other_strides_cost_one_copy(view: Any) -> None:
    tensor = view(torch.randn(6, 8))
    array = bridge.to_jax(tensor)
    assert address_of(array) != address_of(tensor)
    np.testing.assert_array_equal(np.asarray(array), tensor.numpy())
    assert bits_of(bridge.to_jax(tensor, copy=True)) == bits_of(tensor)
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    with pytest.raises(BufferError) as error:
        bridge.to_jax({"w": tensor}, copy=False)
    message = str(error.value)
    for word in ("tree['w']", str(shape), str(strides), "torch.float32", "cpu", "copy=None"):
        assert word in message


def test_an_address_that_is_not_aligned_costs_one_copy() -> None:
    tensor = torch.randn(65)[1:]
    assert tensor.data_ptr() % 64
    array = bridge.to_jax(tensor)
    assert address_of(array) != address_of(tensor)
    np.testing.assert_array_equal(np.asarray(array), tensor.numpy())
    with pytest.raises(BufferError, match="64 bytes"):
        bridge.to_jax(tensor, copy=False)
    # Without elements no address is used.
    assert bridge.to_jax(tensor[3:3], copy=False).shape == (0,)


def conjugate() -> torch.Tensor:
    return torch.randn(4, 5, dtype=torch.complex64).conj()


def negative() -> torch.Tensor:
    return torch.randn(4, 5, dtype=torch.complex64).conj().imag


@pytest.mark.parametrize("lazy", [conjugate, negative, lambda: conjugate().mT])
def test_lazy_bits_are_resolved(lazy: Any) -> None:
    tensor = lazy()
    assert tensor.is_conj() or tensor.is_neg()
    expected = tensor.resolve_conj().resolve_neg().numpy()
    for copy in (None, True):
        np.testing.assert_array_equal(np.asarray(bridge.to_jax(tensor, copy=copy)), expected)
    assert tensor.is_conj() or tensor.is_neg()
    with pytest.raises(BufferError, match="its bit is set"):
        bridge.to_jax(tensor, copy=False)


def test_imag_and_real_are_strided_views() -> None:
    tensor = torch.randn(8, dtype=torch.complex64)
    np.testing.assert_array_equal(np.asarray(bridge.to_jax(tensor.imag)), tensor.imag.numpy())
    with pytest.raises(BufferError, match="strides"):
        bridge.to_jax(tensor.real, copy=False)


def test_a_copy_is_independent() -> None:
    tensor = torch.zeros(64)
    array, alias = bridge.to_jax(tensor, copy=True), bridge.to_jax(tensor)
    tensor += 1
    assert float(array.sum()) == 0
    assert float(alias.sum()) == 64  # the aliasing rule
    array = jnp.zeros(64)
    copied = bridge.to_torch(array, copy=True)
    copied += 1
    assert float(array.sum()) == 0


def test_the_array_is_computed_before_it_crosses() -> None:
    big = jnp.ones((700, 700))
    product = jax.jit(lambda x: x @ x @ x @ x)(big)
    assert (bridge.to_torch(product) == 700.0**3).all()


def test_donation_leaves_an_alias_alone() -> None:
    """A jitted function that gets either framework's memory as a donation does not write it."""
    add = jax.jit(lambda x: x + 1, donate_argnums=0)
    tensor = torch.zeros(64)
    result = add(bridge.to_jax(tensor))
    assert tensor.sum() == 0
    assert float(result.sum()) == 64
    array = jnp.zeros(64)
    alias = bridge.to_torch(array)
    result = add(array)
    assert alias.sum() == 0
    assert float(result.sum()) == 64


def test_what_is_there_already_stays() -> None:
    tensor, array = torch.ones(3, requires_grad=True), jnp.ones(3)
    assert bridge.to_torch(tensor) is tensor
    assert bridge.to_jax(array) is array
    assert address_of(bridge.to_torch(tensor, copy=True)) != address_of(tensor)
    assert address_of(bridge.to_jax(array, copy=True)) != address_of(array)


def test_memory_that_is_not_there() -> None:
    """A lazy zero of forward mode is materialised; a freed storage is refused."""
    zero = torch._efficientzerotensor(4)
    assert bridge.to_jax(zero).tolist() == [0, 0, 0, 0]
    with pytest.raises(BufferError, match="lazy zero"):
        bridge.to_jax(zero, copy=False)
    freed = torch.ones(64)
    freed.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="freed"):
        bridge.to_jax(freed)


def test_parameters_cross_as_tensors() -> None:
    parameter = torch.nn.Parameter(torch.randn(5), requires_grad=False)
    assert address_of(bridge.to_jax(parameter, copy=False)) == parameter.data_ptr()


def test_a_mesh_of_one_device_is_no_obstacle() -> None:
    mesh = jax.make_mesh((1,), ("x",))
    spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    array = jax.device_put(jnp.arange(4.0), spec)
    assert address_of(bridge.to_torch(array, copy=False)) == address_of(array)


def test_crossings_inside_traces_of_the_other_framework() -> None:
    """A tensor from outside the trace is converted as usual."""
    strided, array = torch.randn(6, 8)[:, ::2], jnp.ones((2, 3))
    expected = bits_of(strided)

    def torch_side(x: torch.Tensor) -> torch.Tensor:
        assert bits_of(bridge.to_jax(strided)) == expected
        return (x * bridge.to_torch(array, copy=True)).sum()

    torch.func.grad(torch_side)(torch.ones(2, 3))
    torch.func.vmap(torch_side)(torch.ones(4, 2, 3))

    def jax_side(x: Any) -> Any:
        return x * bridge.to_jax(strided)

    np.testing.assert_array_equal(np.asarray(jax.jit(jax_side)(1.0)), strided.numpy())
