"""Large results on the CPU reuse the memory of dropped results, never memory in use."""

from __future__ import annotations

import gc
import pickle
import random
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import bridge.torch as bt
from bridge import _native
from bridge.torch._adapter import kernels

MIB = 2**20
SMAPS = Path("/proc/self/smaps_rollup")
ROWS, COLUMNS = 513, 2051  # 4 MiB in float32 and a little more; no whole pages


@pytest.fixture(autouse=True)
def limit() -> Iterator[None]:
    gc.collect()
    _native.keep_memory(0)
    _native.keep_memory(128 * MIB)
    yield
    _native.keep_memory(1024 * MIB)


def call(value: float, dtype: torch.dtype = torch.float32, rows: int = ROWS) -> Tensor:
    return bt.squared_relu(torch.full((rows, COLUMNS), value, dtype=dtype))


def holds(tensor: Any, value: float) -> bool:
    return bool((np.asarray(tensor) == value * value).all())


def test_the_next_result_lies_where_the_last_one_lay() -> None:
    first = call(2.0)
    where = first.data_ptr()
    assert _native.kept_memory() == 0  # the memory is in use
    del first
    assert _native.kept_memory() == 6 * MIB  # in whole pages of 2 MiB
    second = call(3.0)
    assert second.data_ptr() == where
    assert second.is_contiguous()
    assert second.untyped_storage().nbytes() == ROWS * COLUMNS * 4
    assert holds(second, 3.0)
    third = call(4.0)
    assert third.data_ptr() != where
    assert holds(second, 3.0)


def test_small_results_and_other_sizes_are_not_kept() -> None:
    bt.squared_relu(torch.ones(16, 1024))
    assert _native.kept_memory() == 0
    large = call(2.0, rows=4 * ROWS)
    where = large.data_ptr()
    del large
    assert call(2.0).data_ptr() != where


def test_the_oldest_is_freed_beyond_the_limit() -> None:
    _native.keep_memory(12 * MIB)
    results = [call(2.0) for _ in range(5)]
    newest = [result.data_ptr() for result in results[3:]]
    while results:
        del results[0]
    assert _native.kept_memory() == 12 * MIB
    again = [call(3.0), call(4.0)]
    assert sorted(result.data_ptr() for result in again) == sorted(newest)
    del again
    _native.keep_memory(6 * MIB)
    assert _native.kept_memory() == 6 * MIB
    _native.keep_memory(0)
    assert _native.kept_memory() == 0
    assert holds(call(2.0), 2.0)


@pytest.mark.skipif(not SMAPS.exists(), reason="asks Linux which memory it may take back")
def test_what_lies_idle_is_offered_to_the_system() -> None:
    def offered() -> int:
        return int(SMAPS.read_text().split("LazyFree:")[1].split()[0]) * 1024

    call(2.0, rows=2 * ROWS)  # dropped, and of another size
    before = offered()
    for _ in range(300):
        call(3.0)
    assert offered() >= before + 8 * MIB
    assert holds(call(5.0, rows=2 * ROWS), 5.0)


HOLDERS = {
    "tensor": lambda y: y,
    "view": lambda y: y[1:, ::2],
    "detached": lambda y: y.detach(),
    "storage": lambda y: y.untyped_storage(),
    "numpy": lambda y: y.numpy(),
    "capsule": lambda y: y.__dlpack__(),
    "graph": lambda y: y.detach().requires_grad_().square(),  # saves y for its derivative
    "node": lambda y: y.detach().requires_grad_().square().grad_fn,
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_what_is_held_is_not_written(holder: str) -> None:
    y = call(2.0)
    where = y.data_ptr()
    held: Any = HOLDERS[holder](y)
    del y
    gc.collect()
    others = [call(3.0) for _ in range(3)]
    assert where not in [other.data_ptr() for other in others]
    del others, held
    gc.collect()
    assert where in [other.data_ptr() for other in [call(3.0) for _ in range(4)]]


def test_jax_holds_what_it_was_lent() -> None:
    jax = pytest.importorskip("jax")
    import bridge

    y = call(2.0)
    array = bridge.to_jax(y)
    del y
    others = [call(3.0) for _ in range(3)]
    assert holds(array, 2.0)
    total = jax.numpy.sum(array)
    del array, others
    other = call(5.0)
    assert float(total) == 4.0 * ROWS * COLUMNS
    assert holds(other, 5.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_gradients_are_those_of_new_memory(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2 * ROWS, COLUMNS, generator=generator, dtype=torch.float64).to(dtype)
    weight, g = x[0].clone(), x.flip(0)

    def both() -> list[Tensor]:
        found = []
        for function in (bt.rms_norm, bt.layer_norm):
            given = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
            y = function(*given)
            found += [y.detach(), *torch.autograd.grad(y, given, g)]
        return found

    kept = [both() for _ in range(2)][1]
    _native.keep_memory(0)
    for a, b in zip(kept, both(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("shape", [(4100, 2051), (3, 3 * 2**20 + 5)], ids=str)
def test_what_is_written_past_the_caches_is_the_same(shape: tuple[int, int]) -> None:
    """This applies from 32 MiB on, in reused memory; rows may begin within a cache line."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    weight, g = x[0].clone(), x.flip(0)

    def both() -> list[Tensor]:
        given = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
        y = bt.rms_norm(*given)
        return [y.detach(), *torch.autograd.grad(y, given, g)]

    first = both()
    expected, where = [tensor.clone() for tensor in first], [y.data_ptr() for y in first[:2]]
    del first
    again = both()
    assert sorted(y.data_ptr() for y in again[:2]) == sorted(where)
    for a, b in zip(again, expected, strict=True):
        assert torch.equal(a, b)


def test_a_gradient_is_accumulated_in_place_and_returned_alone() -> None:
    """The gradients of two calls on one tensor are added, and neither is lost."""
    x = torch.full((ROWS, COLUMNS), 2.0, requires_grad=True)
    (bt.squared_relu(x) + bt.squared_relu(x)).sum().backward()
    assert x.grad is not None
    assert (x.grad == 8.0).all()


def test_many_threads() -> None:
    """Results of several threads, of several sizes, some held for a while, do not change."""
    errors: list[str] = []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        held: list[tuple[Tensor, float]] = []
        for i in range(30):
            value = float(seed * 100 + i)
            held.append((call(value, rows=rng.choice([ROWS, 2 * ROWS])), value))
            if len(held) > 3:
                held.pop(rng.randrange(len(held)))
            for tensor, value in held:
                if not holds(tensor[:: ROWS - 1], value):
                    errors.append(f"{seed}: {value}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert _native.kept_memory() <= 128 * MIB


def test_what_becomes_of_a_tensor_changes_nothing_in_another() -> None:
    y = call(2.0)
    where = y.data_ptr()
    y.share_memory_()  # moves its memory
    assert y.data_ptr() != where
    other = call(3.0)
    assert other.data_ptr() == where
    assert holds(y, 2.0)
    assert holds(pickle.loads(pickle.dumps(other)), 3.0)
    other.set_()  # type: ignore[call-overload]
    assert _native.kept_memory() == 6 * MIB
    with pytest.raises(RuntimeError, match="resiz"):  # like a tensor from NumPy
        call(2.0).resize_(2 * ROWS, COLUMNS)


def test_a_child_process_has_memory_of_its_own() -> None:
    """The process has no jax, which would warn about forks."""
    lines = f"""
        import os, torch, bridge.torch as bt
        torch.set_num_threads(1)
        def call(value):
            return bt.squared_relu(torch.full(({ROWS}, {COLUMNS}), value))
        where = call(2.0).data_ptr()
        child = os.fork()
        mine = call(5.0 if child == 0 else 3.0)
        if child != 0:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert mine.data_ptr() == where
        assert (mine == (25.0 if child == 0 else 9.0)).all()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(lines)], check=True, timeout=120)


def test_profilers_see_what_is_allocated() -> None:
    from torch.profiler import ProfilerActivity, profile

    x = torch.ones(ROWS, COLUMNS, requires_grad=True)
    with profile(
        activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True
    ) as profiled:
        y = bt.squared_relu(x)
        y.backward(y.detach())
    assert x.grad is not None
    events: Any = profiled.profiler
    sizes = [
        event.nbytes() for event in events.kineto_results.events() if event.name() == "[memory]"
    ]
    assert sizes.count(4 * ROWS * COLUMNS) == 2


@pytest.mark.parametrize(("value", "kept"), [(None, 1024), ("0", 0), ("4", 4), ("9" * 99, 2**40)])
def test_the_environment_says_how_much(
    value: str | None, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is None:
        monkeypatch.delenv("BRIDGE_KEEP_MIB", raising=False)
    else:
        monkeypatch.setenv("BRIDGE_KEEP_MIB", value)
    kernels.keep_memory()
    call(2.0)
    assert _native.kept_memory() == (6 * MIB if kept >= 6 else 0)


@pytest.mark.parametrize("value", ["", "-1", "1e3", "much"])
def test_a_wrong_limit_is_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIDGE_KEEP_MIB", value)
    with pytest.raises(ValueError, match=f"^BRIDGE_KEEP_MIB is '{value}'; expected a number of Mi"):
        kernels.keep_memory()
