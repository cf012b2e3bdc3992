"""Streams and the end of memory: what can be tested anywhere, then what needs a GPU."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import bridge
from bridge import _native
from bridge._exchange import cuda
from bridge._exchange.refusal import Refused
from bridge._exchange.runtime import capsule_to_array, cpu_device

on_gpu = pytest.mark.skipif(not bridge.has_cuda(), reason="needs a CUDA device")


def test_xla_is_asked_for_its_stream() -> None:
    """The whole way of the question: on the CPU, where the answer is that there is none."""
    assert cuda.noted_stream(cpu_device()) == 0
    assert _native.noted_stream() == 0
    # Inside a trace it is asked at once, not when the traced function runs.
    asked = []
    jax.jit(lambda x: (asked.append(cuda.noted_stream(cpu_device())), x)[1])(1.0)
    assert asked == [0]


def test_the_last_tensor_on_a_memory_is_noticed() -> None:
    calls: list[int] = []
    tensor = bridge.to_torch(jnp.arange(8.0))
    cuda.when_dropped(tensor, lambda: calls.append(1))
    view, detached = tensor[2:5], tensor.detach()
    del tensor
    gc.collect()
    assert calls == []
    del view
    assert calls == []
    holder = detached.numpy()  # NumPy keeps the memory too
    del detached
    assert calls == []
    del holder
    gc.collect()
    assert calls == [1]
    assert not cuda._watched


def test_an_array_lives_until_its_readers_have_been_ordered() -> None:
    source = torch.arange(16.0)
    storage = weakref.ref(source.untyped_storage())
    array = bridge.to_jax(source)
    alive: list[bool] = []
    held = array.addressable_data(0)
    tensor = bridge.to_torch(array)
    cuda.when_dropped(tensor, lambda held=held: alive.append(storage() is not None))  # type: ignore[misc]
    del array, held, source, tensor
    gc.collect()
    assert alive == [True]
    assert storage() is None


def test_dropped_in_another_thread() -> None:
    calls: list[str] = []
    box = [bridge.to_torch(jnp.arange(8.0))]
    cuda.when_dropped(box[0], lambda: calls.append(threading.current_thread().name))
    thread = threading.Thread(target=box.clear, name="dropper")
    thread.start()
    thread.join()
    assert calls == ["dropper"]


class FakeStream:
    """A stream that writes down who waits for whom."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log, self.cuda_stream = name, log, 0

    def wait_stream(self, other: FakeStream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """CUDA crossings on CPU memory: the order of what is asked of the streams, without a GPU."""
    log: list[str] = []
    state = {"capturing": False, "stream": FakeStream("torch", log)}

    class Device:
        def get_stream_for_external_ready_events(self) -> None:
            return None

    def capsule_on(array: Any, stream: int) -> Any:
        log.append(f"stream {stream} waits for the array")
        return cuda.array_to_capsule(array)

    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: state["stream"])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: state["capturing"])
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda *_, **__: FakeStream("ready", log))
    monkeypatch.setattr(
        torch.Tensor, "record_stream", lambda _, s: log.append(f"kept for {s.name}")
    )
    monkeypatch.setattr(cuda, "cuda_device", lambda index: Device())
    monkeypatch.setattr(cuda, "_jax_stream", lambda index: FakeStream("jax", log))
    monkeypatch.setattr(cuda, "array_to_capsule_on", capsule_on)
    monkeypatch.setattr(
        cuda,
        "capsule_to_array",
        lambda capsule, _, stream, copy: capsule_to_array(capsule, cpu_device(), stream, copy),
    )
    return log, state


def test_the_order_of_streams_towards_jax(fake_gpu: Any) -> None:
    log, state = fake_gpu
    tensor = torch.arange(16.0)
    array = cuda.tensor_to_array(tensor)
    assert log == ["ready waits for torch", "kept for jax"]
    assert array.unsafe_buffer_pointer() == tensor.data_ptr()
    state["capturing"] = True
    with pytest.raises(Refused, match="captured"):
        cuda.tensor_to_array(tensor)


def test_the_order_of_streams_towards_torch(fake_gpu: Any) -> None:
    log, state = fake_gpu
    array = jnp.arange(16.0)
    tensor = cuda.array_to_tensor(array)
    assert log == [f"stream {cuda.LEGACY_STREAM} waits for the array"]
    state["stream"] = FakeStream("another", log)  # the one that is current at the end reads too
    del array
    assert len(log) == 1
    del tensor
    assert set(log[1:]) == {"jax waits for torch", "jax waits for another"}


def test_no_event_enters_a_capture(fake_gpu: Any) -> None:
    log, state = fake_gpu
    array = jnp.arange(16.0).block_until_ready()
    state["capturing"] = True
    tensor = cuda.array_to_tensor(array)
    del tensor
    assert log == []
    state["capturing"] = False
    tensor = cuda.array_to_tensor(array)
    log.clear()
    del tensor  # takes along what was dropped during the capture
    assert log == ["jax waits for torch"] * 2
    assert not cuda._given_back_later


@pytest.fixture
def slow() -> Any:
    """A kernel that keeps torch's current stream busy for some milliseconds."""
    return lambda: torch.cuda._sleep(5_000_000)


@on_gpu
@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_jax_waits_for_torchs_producer(slow: Any, count: int) -> None:
    total = jax.jit(lambda x: x.sum())
    for i in range(count):
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            tensor = torch.zeros(1024, device="cuda")
            if i % 50 == 0:
                slow()
            tensor.fill_(i)
            result = total(bridge.to_jax(tensor))
        del tensor
        assert float(result) == 1024 * float(i)


@on_gpu
@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_torch_waits_for_jaxs_producer(count: int) -> None:
    @jax.jit
    def produce(i: Any, big: Any) -> Any:
        for _ in range(4):
            big = big @ big
        return jnp.full(1024, i) + 0 * big[0, 0]

    big = jax.device_put(jnp.zeros((1024, 1024)), jax.devices("cuda")[0])
    for i in range(count):
        with torch.cuda.stream(torch.cuda.Stream()):
            total = bridge.to_torch(produce(float(i), big)).sum()
            assert total.item() == 1024 * i


@on_gpu
def test_torch_reuses_memory_after_jax_is_done() -> None:
    big = jax.device_put(jnp.ones((4096, 4096)), jax.devices("cuda")[0])
    read = jax.jit(lambda x, big: x.sum() + 0 * (big @ big @ big)[0, 0] + x.sum())
    for i in range(50):
        tensor = torch.full((1 << 20,), float(i), device="cuda")
        result = read(bridge.to_jax(tensor), big)
        del tensor
        for _ in range(4):
            torch.full((1 << 20,), -1.0, device="cuda")
        assert float(result) == 2.0 * i * (1 << 20)


@on_gpu
def test_jax_reuses_memory_after_torch_is_done(slow: Any) -> None:
    device = jax.devices("cuda")[0]
    for i in range(50):
        array = jax.device_put(jnp.full(1 << 20, float(i)), device)
        with torch.cuda.stream(torch.cuda.Stream()):
            tensor = bridge.to_torch(array)
            slow()
            total = tensor.sum()
            del tensor, array
        overwritten = [jax.device_put(jnp.full(1 << 20, -1.0), device) for _ in range(4)]
        jax.block_until_ready(overwritten)
        assert total.item() == i * (1 << 20)


@on_gpu
def test_crossings_and_cuda_graphs() -> None:
    array = jax.device_put(jnp.arange(16.0), jax.devices("cuda")[0]).block_until_ready()
    bridge.to_torch(array)
    out = torch.zeros(16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tensor = bridge.to_torch(array)
        out.copy_(tensor * 2)
        with pytest.raises(ValueError, match="capture"):
            bridge.to_jax(out)
    graph.replay()
    np.testing.assert_array_equal(out.cpu().numpy(), 2 * np.arange(16.0))


@on_gpu
@pytest.mark.parametrize("copy", [None, False, True])
def test_values_cross_on_the_gpu(copy: bool | None) -> None:
    tensor = torch.randn(33, 7, device="cuda")
    array = bridge.to_jax(tensor, copy=copy)
    np.testing.assert_array_equal(np.asarray(array), tensor.cpu().numpy())
    back = bridge.to_torch(array, copy=copy)
    assert back.device == tensor.device
    assert torch.equal(back, tensor)
    assert (back.data_ptr() == tensor.data_ptr()) is (copy is not True)
    array = bridge.to_jax(tensor[:, ::2])
    np.testing.assert_array_equal(np.asarray(array), tensor[:, ::2].cpu().numpy())
    with pytest.raises(BufferError, match="cuda:0"):
        bridge.to_jax(tensor[:, ::2], copy=False)
