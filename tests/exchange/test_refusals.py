"""Errors name the place of a value in its tree, its kind, and the remedy."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch.autograd import forward_ad

import bridge
from tests.exchange.values import bits_of


def refusal(kind: type[Exception], function: Any, leaf: Any, **keywords: Any) -> str:
    """Returns the message about a leaf deep in a tree, which names its path."""
    with pytest.raises(kind) as error:
        function({"params": [{"w": leaf}]}, **keywords)
    message = str(error.value)
    assert type(error.value) is kind
    assert message.startswith(f"{function.__name__}: tree['params'][0]['w']: ")
    # The remedy is one clause at the end.
    assert message.rpartition(": ")[2]
    return message


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.uint64, torch.complex128])
def test_wide_dtypes_need_x64(dtype: torch.dtype) -> None:
    tensor = torch.zeros(2, 3, dtype=dtype)
    for copy in (None, False, True):
        message = refusal(ValueError, bridge.to_jax, tensor, copy=copy)
        assert "jax_enable_x64" in message
        assert str(dtype) in message
        assert "(2, 3)" in message
    with jax.enable_x64(True):
        array = bridge.to_jax(tensor)
        assert array.dtype == str(dtype).removeprefix("torch.")
    # In the other direction there is nothing to narrow.
    assert bridge.to_torch(array).dtype == dtype


def test_requires_grad() -> None:
    tensor = torch.randn(3, requires_grad=True)
    for leaf in (tensor, tensor * 2, torch.nn.Parameter(torch.randn(3))):
        message = refusal(ValueError, bridge.to_jax, leaf)
        assert "detach()" in message
        assert "from_jax" in message
    with torch.no_grad():
        refusal(ValueError, bridge.to_jax, tensor)
    assert bridge.to_jax(tensor.detach()).unsafe_buffer_pointer() == tensor.data_ptr()


def test_forward_mode_tangent() -> None:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.randn(3), torch.randn(3))
        assert "tangent" in refusal(ValueError, bridge.to_jax, dual)
        plain = torch.randn(3)
        assert bits_of(bridge.to_jax(plain)) == bits_of(plain)


def test_values_of_torch_func() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        assert "torch.func" in refusal(TypeError, bridge.to_jax, x)
        return x.sum()

    torch.func.grad(function)(torch.randn(3))
    torch.func.vmap(function)(torch.randn(2, 3))
    torch.func.jvp(function, (torch.randn(3),), (torch.randn(3),))


def test_fake_tensors() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        assert "from_jax" in refusal(TypeError, bridge.to_jax, torch.ones(3))


@pytest.mark.parametrize("copy", [None, False, True])
def test_lazy_parameters_and_buffers(copy: bool | None) -> None:
    module = torch.nn.LazyBatchNorm1d()
    frozen = torch.nn.UninitializedParameter(requires_grad=False)
    for leaf in (module.weight, module.running_mean, frozen):
        message = refusal(ValueError, bridge.to_jax, leaf, copy=copy)
        assert "has no shape yet: run its module once" in message
    module(torch.ones(2, 3))
    assert bridge.to_jax(module.running_mean).shape == (3,)


def test_meta_sparse_quantized_nested() -> None:
    assert "meta" in refusal(ValueError, bridge.to_jax, torch.ones(3, device="meta"))
    sparse = torch.eye(3).to_sparse()
    assert "sparse" in refusal(TypeError, bridge.to_jax, sparse)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fnuz, torch.float8_e5m2fnuz])
def test_other_torch_dtypes_are_refused_by_name(dtype: torch.dtype) -> None:
    assert str(dtype) in refusal(TypeError, bridge.to_jax, torch.empty(4, dtype=dtype))


@pytest.mark.parametrize("dtype", ["int4", "uint4", "float8_e4m3fnuz", "float4_e2m1fn"])
def test_other_jax_dtypes_are_refused_by_name(dtype: str) -> None:
    assert dtype in refusal(TypeError, bridge.to_torch, jnp.zeros(4, dtype))


def test_tracers() -> None:
    def function(x: Any) -> Any:
        message = refusal(TypeError, bridge.to_torch, x)
        assert "from_torch" in message
        return x.sum()

    jax.jit(function)(jnp.ones(3))
    jax.grad(function)(jnp.ones(3))
    jax.vmap(function)(jnp.ones((2, 3)))


def test_typed_keys() -> None:
    key = jax.random.key(3)
    assert "key_data" in refusal(TypeError, bridge.to_torch, key)
    assert bridge.to_torch(jax.random.key_data(key)).dtype == torch.uint32


def test_deleted_and_donated() -> None:
    array = jnp.ones(3)
    array.delete()
    assert "deleted" in refusal(ValueError, bridge.to_torch, array)
    array = jnp.ones(3)
    jax.jit(lambda x: x + 1, donate_argnums=0)(array)
    assert "donate" in refusal(ValueError, bridge.to_torch, array)
    known = jnp.ones(3)
    bridge.to_torch(known)
    known.delete()
    assert "deleted" in refusal(ValueError, bridge.to_torch, known)


def test_copy_is_none_false_or_true() -> None:
    for function, leaf in ((bridge.to_jax, torch.ones(2)), (bridge.to_torch, jnp.ones(2))):
        for copy in (1, 0, "yes"):
            with pytest.raises(TypeError, match="copy is"):
                function(leaf, copy=copy)


def test_subclasses() -> None:
    class Labelled(torch.Tensor):
        pass

    labelled = torch.randn(4).as_subclass(Labelled)
    assert bridge.to_jax(labelled).unsafe_buffer_pointer() == labelled.data_ptr()

    from torch.testing._internal.two_tensor import TwoTensor

    message = refusal(TypeError, bridge.to_jax, TwoTensor(torch.ones(2), torch.ones(2)))
    assert "TwoTensor" in message


def run(code: str) -> str:
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def test_sharded_arrays() -> None:
    out = run("""
        import jax, jax.numpy as jnp, bridge, torch
        from jax.sharding import NamedSharding, PartitionSpec
        jax.config.update("jax_num_cpu_devices", 4)
        mesh = jax.make_mesh((4,), ("x",))
        for spec in (PartitionSpec("x"), PartitionSpec()):
            array = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, spec))
            try:
                bridge.to_torch({"a": array})
            except ValueError as error:
                assert "tree['a']" in str(error) and "addressable_shards" in str(error), error
                assert str(jax.devices()[3]) in str(error), error
            else:
                raise AssertionError("a sharded array crossed")
            shards = bridge.to_torch([shard.data for shard in array.addressable_shards])
            assert len(shards) == 4
        other = jax.device_put(jnp.arange(8.0), jax.devices("cpu")[2])
        assert bridge.to_torch(other).tolist() == list(range(8))
        print("ok")
    """)
    assert out.strip() == "ok"


@pytest.mark.long
def test_distributed_tensors() -> None:
    out = run("""
        import os, tempfile, torch, bridge, warnings
        import torch.distributed as dist
        import torch.distributed._functional_collectives as collectives
        from torch.distributed.tensor import DTensor, Replicate, init_device_mesh
        with tempfile.TemporaryDirectory() as folder:
            dist.init_process_group("gloo", init_method=f"file://{folder}/f", rank=0, world_size=1)
            waiting = collectives.all_reduce(torch.arange(4.0), "sum", dist.group.WORLD)
            assert isinstance(waiting, collectives.AsyncCollectiveTensor)
            assert bridge.to_jax([waiting])[0].tolist() == [0, 1, 2, 3]
            mesh = init_device_mesh("cpu", (1,))
            spread = DTensor.from_local(torch.ones(4), mesh, [Replicate()])
            try:
                bridge.to_jax([spread])
            except TypeError as error:
                assert "to_local" in str(error) and "tree[0]" in str(error), error
            else:
                raise AssertionError("a DTensor crossed")
            from bridge.torch import from_jax
            import jax.numpy as jnp
            add = from_jax(jnp.add)
            add(torch.ones(4), torch.ones(4))  # a program of the same shapes is there
            for place, given in (("args[0]", (spread, 1.0)), ("args[1]", (torch.ones(4), spread))):
                try:
                    add(*given)
                except TypeError as error:
                    assert "to_local" in str(error) and place in str(error), error
                else:
                    raise AssertionError("a DTensor went into a JAX function")
            dist.destroy_process_group()
        print("ok")
    """)
    assert out.strip() == "ok"


def test_inside_torch_compile() -> None:
    """The conversions break the graph, and the message says what to use instead."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return bridge.to_torch(bridge.to_jax(x + 1)) * 2

    x = torch.randn(4)
    torch.testing.assert_close(torch.compile(function, backend="eager")(x), (x + 1) * 2)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="from_jax"):
        torch.compile(function, backend="eager", fullgraph=True)(x)


def test_the_numbers_of_numpy_stay() -> None:
    assert bridge.to_torch([np.float32(2), 3, "x", None]) == [np.float32(2), 3, "x", None]
