"""Memory lives as long as either side uses it, and no longer."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import textwrap
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import bridge
from bridge.jax import from_torch
from bridge.torch import from_jax


def collect() -> None:
    """jaxlib releases a tensor's objects when Python collects garbage, or at its next call."""
    gc.collect()


def test_an_array_keeps_the_tensors_memory() -> None:
    tensor = torch.arange(64.0)
    storage = weakref.ref(tensor.untyped_storage())
    array = bridge.to_jax(tensor)
    del tensor
    collect()
    assert storage() is not None
    assert array.tolist() == list(range(64))
    del array
    collect()
    assert storage() is None


def give_other_data(parameter: torch.nn.Parameter) -> None:
    parameter.data = torch.ones(4)


def convert_module(parameter: torch.nn.Parameter) -> None:
    module = torch.nn.Module()
    module.weight = parameter
    module.to(torch.float16)


RESIZE = {
    "resize_": lambda tensor: tensor.resize_(1 << 20),
    "of a view": lambda tensor: tensor[1:].resize_(1 << 20),
    "resize_as_": lambda tensor: tensor.resize_as_(torch.empty(1 << 20)),
    "storage": lambda tensor: tensor.untyped_storage().resize_(0),
    "out": lambda tensor: torch.cat([torch.ones(1 << 19).to(tensor.dtype)] * 2, out=tensor),
}


@pytest.mark.parametrize("resize", RESIZE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool], ids=str)
def test_memory_that_has_crossed_cannot_be_resized(resize: str, dtype: torch.dtype) -> None:
    """torch would free memory that the array reads: resize_ raises; smaller sizes still work."""
    tensor = torch.ones(64).to(dtype)
    for tree in (tensor, {"leaf": tensor}, torch.nn.Parameter(tensor, requires_grad=False)):
        array = jax.tree.leaves(bridge.to_jax(tree))[0]
        warns = pytest.warns() if resize == "out" else contextlib.nullcontext()
        with pytest.raises(RuntimeError, match="not resizable"), warns:
            RESIZE[resize](tensor)
        tensor = tensor.resize_(64)
        assert array.unsafe_buffer_pointer() == tensor.data_ptr()
        assert array.astype(int).tolist() == [1] * 64
    copy = torch.ones(64)
    bridge.to_jax(copy, copy=True)
    bridge.to_jax(copy[::2])
    assert copy.clone().resize_(1 << 20).shape == copy.resize_(1 << 20).shape


def test_results_of_from_torch_cannot_be_resized() -> None:
    """A buffer that one call returns is not enlarged by the next."""
    kept = torch.empty(0)
    g = from_torch(lambda x: torch.mul(x, 2, out=kept))
    first = g(jnp.ones(64))
    with pytest.raises(RuntimeError, match="not resizable"), pytest.warns():
        g(jnp.ones(1 << 16))
    assert first.tolist() == [2] * 64


def test_shared_memory_is_other_memory() -> None:
    """The array does not follow a tensor into shared memory, as docs/exchange.md warns."""
    tensor = torch.ones(64)
    array = bridge.to_jax(tensor)
    tensor.share_memory_()
    assert tensor.data_ptr() != array.unsafe_buffer_pointer()
    before = torch.ones(64).share_memory_()
    assert bridge.to_jax(before).unsafe_buffer_pointer() == before.data_ptr()


REPLACE = {
    "data": give_other_data,
    "set_": lambda parameter: parameter.set_(torch.ones(4)),
    "module.to": convert_module,
    "swap_tensors": lambda parameter: torch.utils.swap_tensors(
        parameter, torch.nn.Parameter(torch.ones(4), requires_grad=False)
    ),
}


@pytest.mark.parametrize("watched", [False, True], ids=["eager", "under a mode"])
@pytest.mark.parametrize("replace", REPLACE.values(), ids=REPLACE)
def test_an_array_keeps_memory_that_the_tensor_gave_up(replace: Any, watched: bool) -> None:
    """If a parameter gets another storage in place, the array keeps the old one."""
    parameter = torch.nn.Parameter(torch.arange(64.0), requires_grad=False)
    storage = weakref.ref(parameter.untyped_storage())
    with FakeTensorMode() if watched else contextlib.nullcontext():
        array = bridge.to_jax(parameter, copy=False)
    replace(parameter)
    collect()
    assert storage() is not None
    assert array.tolist() == list(range(64))
    del array
    collect()
    assert storage() is None


@pytest.mark.parametrize("transform", [torch.func.grad, torch.func.vmap])
def test_memory_lent_inside_of_a_transform_is_kept(transform: Any) -> None:
    tensor = torch.randn(6, 8).T
    storage = weakref.ref(tensor.untyped_storage())
    arrays = []
    transform(lambda x: (arrays.append(bridge.to_jax(tensor, copy=False)), x.sum())[1])(
        torch.ones(2, 3)
    )
    tensor.set_(torch.ones(4))
    collect()
    assert storage() is not None
    assert arrays[0].shape == (8, 6)


def test_a_backward_pass_reads_what_the_forward_pass_read() -> None:
    """JAX's residuals are the parameter's memory, which `.data = ` takes from the parameter."""
    weight = torch.nn.Parameter(torch.full((256, 256), 3.0))
    x = torch.full((256,), 2.0, requires_grad=True)
    result = from_jax(lambda w, x: w @ x)(weight, x)
    weight.data = torch.zeros(256, 256)
    overwritten = [torch.zeros(256, 256) for _ in range(4)]
    (gradient,) = torch.autograd.grad(result.sum(), x)
    assert gradient.tolist() == [3.0 * 256] * 256
    del overwritten


def test_a_tensor_keeps_the_arrays_memory() -> None:
    memory = torch.arange(64.0)  # a weak reference shows its end
    storage = weakref.ref(memory.untyped_storage())
    array = bridge.to_jax(memory)
    tensor = bridge.to_torch(array)
    view = tensor[10:]
    del memory, array, tensor
    collect()
    assert storage() is not None
    assert view[0] == 10
    del view
    collect()
    assert storage() is None


def test_a_deleted_array_leaves_its_alias() -> None:
    array = jnp.arange(64.0)
    tensor = bridge.to_torch(array)
    array.delete()
    refill = [jnp.full(64, -1.0) for _ in range(100)]
    assert tensor.tolist() == list(range(64))
    del refill


def test_results_keep_what_they_are_made_of() -> None:
    """A JAX computation uses a tensor's memory while the tensor is dropped."""
    tensor = torch.full((600, 600), 2.0)
    result = jax.jit(lambda x: x @ x @ x @ x)(bridge.to_jax(tensor))
    del tensor
    overwritten = [torch.zeros(600, 600) for _ in range(4)]
    assert (np.asarray(result) == 600.0**3 * 16).all()
    del overwritten


def test_refused_crossings_leave_nothing_behind() -> None:
    tensor = torch.randn(65)[1:]
    storage = weakref.ref(tensor.untyped_storage())
    for _ in range(3):
        with pytest.raises(BufferError):
            bridge.to_jax({"w": tensor}, copy=False)
    del tensor
    collect()
    assert storage() is None


def test_garbage_cycles() -> None:
    class Holder:
        pass

    one, other = Holder(), Holder()
    one.tensor, array = torch.arange(64.0), jnp.arange(64.0)
    one.array = bridge.to_jax(one.tensor)
    other.tensor = bridge.to_torch(array)
    one.other, other.one = other, one
    watched = [weakref.ref(one.tensor.untyped_storage()), weakref.ref(array), weakref.ref(other)]
    del one, other, array
    collect()
    collect()  # objects freed by the first one may hold jaxlib's garbage
    assert [ref() for ref in watched] == [None, None, None]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def round_trips(count: int) -> None:
    tensor, array = torch.randn(8, 8), jnp.ones((8, 8))
    strided = torch.randn(8, 9)[:, ::2]
    for i in range(count):
        bridge.to_torch(bridge.to_jax(tensor))
        bridge.to_jax(bridge.to_torch(array))
        if i % 100 == 0:
            bridge.to_jax([strided, {"k": tensor}])


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's /proc")
@pytest.mark.parametrize(
    "count", [20_000, pytest.param(500_000, marks=pytest.mark.slow)], ids=["short", "a million"]
)
def test_memory_stays_flat(count: int) -> None:
    """Resident memory grows by less than 1 MiB; `count` pairs are twice as many round trips.

    Threads of tests before this one may still allocate: a leak grows each time, they do not.
    """
    round_trips(5_000)
    grown = []
    while len(grown) < 3:
        collect()
        before = resident_bytes()
        round_trips(count)
        collect()
        grown.append(resident_bytes() - before)
        if grown[-1] < 2**20:
            return
    raise AssertionError(f"bytes that each repetition left: {grown}")


def test_threads() -> None:
    tensors = [torch.full((32,), float(i)) for i in range(16)]
    arrays = [jnp.full((32,), float(i)) for i in range(16)]
    start = threading.Barrier(8)

    def work(seed: int) -> None:
        start.wait()
        for i in range(500):
            k = (i * 7 + seed) % 16
            there = bridge.to_jax({"t": tensors[k], "s": tensors[k][::2]})
            back = bridge.to_torch([arrays[k], there["t"]])
            assert float(back[0][0]) == float(back[1][3]) == float(there["s"][1]) == k

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))


def run(code: str, *options: str) -> Any:
    result = subprocess.run(
        [sys.executable, "-W", "error", *options, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout.strip(), result.stderr.strip()


def test_interpreter_shutdown_with_aliases_alive() -> None:
    out, err = run("""
        import atexit, sys, torch, jax.numpy as jnp, bridge
        tensor, array = torch.arange(64.0), jnp.arange(64.0)
        aliases = [bridge.to_jax(tensor), bridge.to_torch(array)]
        aliases.append(bridge.to_torch(aliases[0]))
        cycle = {"aliases": aliases}; cycle["self"] = cycle
        sys.modules["keeper"] = cycle  # lives until the modules are torn down
        torch.alias, jnp.alias = aliases[1], aliases[0]
        atexit.register(lambda: print(int(aliases[1].sum()), int(aliases[0].sum())))
        del tensor, array
        print("end")
    """)
    assert out.split() == ["end", "2016", "2016"]
    assert err == ""


def test_fork_after_jax_has_started_is_refused() -> None:
    out, _ = run(
        """
        import os, torch, jax.numpy as jnp, bridge
        array = jnp.arange(4.0)
        bridge.to_torch(array)
        child = os.fork()
        if child == 0:
            said = []
            for function, leaf in (
                (bridge.to_jax, torch.ones(4)),
                (bridge.to_jax, [torch.ones(4)]),
                (bridge.to_torch, array),
                (bridge.to_torch, {"a": array}),
            ):
                try:
                    function(leaf)
                except RuntimeError as error:
                    said.append("spawn" in str(error))
            os._exit(0 if said == [True] * 4 else 1)
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        assert bridge.to_torch(array).tolist() == [0, 1, 2, 3]  # the parent goes on
        print("ok")
        """,
        # JAX warns of every fork.
        "-W",
        "ignore::RuntimeWarning",
        "-W",
        "ignore::DeprecationWarning",
    )
    assert out == "ok"


@pytest.mark.long
@pytest.mark.parametrize("first", ["import bridge", ""], ids=["bridge in the parent", "not there"])
def test_a_child_that_is_the_first_to_cross_is_refused(first: str) -> None:
    """It would wait forever for JAX's threads, for example in a worker of torch's DataLoader."""
    out, _ = run(
        f"""
        import torch, jax.numpy as jnp
        {first}
        from torch.utils.data import DataLoader, Dataset
        jnp.ones(3).block_until_ready()

        class Crossing(Dataset):
            def __len__(self):
                return 2

            def __getitem__(self, i):
                import bridge
                try:
                    return float(bridge.to_jax(torch.ones(4)).sum())
                except RuntimeError as error:
                    assert "spawn" in str(error)
                    return -1.0

        loader = DataLoader(Crossing(), num_workers=1, batch_size=None, timeout=60)
        print(list(loader))
        """,
        "-W",
        "ignore::RuntimeWarning",
        "-W",
        "ignore::DeprecationWarning",
        "-W",
        "ignore::UserWarning",
    )
    assert out == "[-1.0, -1.0]"


def test_fork_before_jax_has_started_is_fine() -> None:
    out, _ = run(
        """
        import os, torch, bridge
        bridge.to_jax
        child = os.fork()
        if child == 0:
            os._exit(0 if bridge.to_jax(torch.ones(4)).sum() == 4 else 1)
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        print("ok")
        """,
        "-W",
        "ignore::RuntimeWarning",
        "-W",
        "ignore::DeprecationWarning",
    )
    assert out == "ok"
