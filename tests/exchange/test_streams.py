"""Streams and the end of memory: tests for any machine, then tests that need a GPU."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import bridge
from bridge import _native
from bridge.exchange import cuda
from bridge.exchange.refusal import Refused
from bridge.exchange.runtime import capsule_to_array, cpu_device

on_gpu = pytest.mark.skipif(not bridge.has_cuda(), reason="needs a CUDA device")


def test_xla_is_asked_for_its_stream() -> None:
    """The whole request runs on the CPU, where the answer is that there is no stream."""
    assert cuda.noted_stream(cpu_device()) == 0
    assert _native.noted_stream() == 0
    # Inside a trace the request runs at once, not when the traced function runs.
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
    """A stream that logs which stream waits for which."""

    def __init__(self, name: str, log: list[str], capturing: bool = False) -> None:
        self.name, self.log, self.cuda_stream, self.capturing = name, log, 0, capturing

    def wait_stream(self, other: FakeStream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")

    def synchronize(self) -> None:
        self.log.append(f"the host waits for {self.name}")


class FakeGpu:
    """CUDA conversions on CPU memory: logs the order of requests to streams, without a GPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.stream = FakeStream("torch", self.log)
        self.lends_stream = True  # False if JAX's client does not answer requests for its stream
        set_attribute = monkeypatch.setattr
        set_attribute(torch.cuda, "device", lambda index: contextlib.nullcontext())
        set_attribute(torch.cuda, "current_stream", lambda *_: self.stream)
        set_attribute(torch.cuda, "stream", self.on_stream)
        set_attribute(torch.cuda, "is_current_stream_capturing", lambda: self.stream.capturing)
        set_attribute(torch.cuda, "ExternalStream", lambda *_, **__: FakeStream("ready", self.log))
        set_attribute(
            torch.Tensor, "record_stream", lambda _, s: self.log.append(f"kept for {s.name}")
        )
        set_attribute(cuda, "cuda_device", lambda index: self)
        set_attribute(cuda, "_jax_stream", lambda index: FakeStream("jax", self.log))
        set_attribute(cuda, "array_to_capsule_on", self.capsule_on)
        set_attribute(cuda, "capsule_to_array", self.array_on)

    @contextlib.contextmanager
    def on_stream(self, stream: FakeStream) -> Iterator[None]:
        before, self.stream = self.stream, stream
        yield
        self.stream = before

    def get_stream_for_external_ready_events(self) -> int:
        """The method of JAX's device, which this object replaces."""
        self.refuse("get_stream_for_external_ready_events")
        return 77

    def capsule_on(self, array: Any, stream: int) -> Any:
        self.refuse("WaitUntilBufferReadyOnStream")
        self.log.append(f"stream {stream} waits for the array")
        return cuda.array_to_capsule(array)

    def array_on(self, capsule: Any, _: Any, stream: int | None, copy: bool | None) -> Any:
        self.log.append(f"imported for {stream}")
        return capsule_to_array(capsule, cpu_device(), None, copy)

    def refuse(self, question: str) -> None:
        if not self.lends_stream:
            raise jax.errors.JaxRuntimeError(f"UNIMPLEMENTED: {question} is not implemented")


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return FakeGpu(monkeypatch)


def test_the_order_of_streams_towards_jax(fake_gpu: FakeGpu) -> None:
    tensor = torch.arange(16.0)
    array = cuda.tensor_to_array(tensor)
    assert fake_gpu.log == ["ready waits for torch", "kept for jax", "imported for 77"]
    assert array.unsafe_buffer_pointer() == tensor.data_ptr()
    fake_gpu.stream.capturing = True
    with pytest.raises(Refused, match="captured"):
        cuda.tensor_to_array(tensor)


def test_the_order_of_streams_towards_torch(fake_gpu: FakeGpu) -> None:
    log = fake_gpu.log
    array = jnp.arange(16.0)
    tensor = cuda.array_to_tensor(array)
    assert log == [f"stream {cuda.LEGACY_STREAM} waits for the array"]
    fake_gpu.stream = FakeStream("another", log)  # the current stream at the end reads too
    del array
    assert len(log) == 1
    del tensor
    assert set(log[1:]) == {"jax waits for torch", "jax waits for another"}


def test_the_host_waits_where_jax_lends_no_stream(fake_gpu: FakeGpu) -> None:
    fake_gpu.lends_stream = False
    tensor = torch.arange(16.0)
    array = cuda.tensor_to_array(tensor)
    assert fake_gpu.log == ["the host waits for torch", "kept for jax", "imported for None"]
    assert array.unsafe_buffer_pointer() == tensor.data_ptr()
    fake_gpu.log.clear()
    home = cuda.array_to_tensor(array)
    assert torch.equal(home, tensor)
    assert fake_gpu.log == []


def test_other_errors_of_jaxs_client_are_not_passed_over(
    fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise jax.errors.JaxRuntimeError("INTERNAL: the device is lost")

    monkeypatch.setattr(fake_gpu, "refuse", fail)
    with pytest.raises(jax.errors.JaxRuntimeError, match="lost"):
        cuda.tensor_to_array(torch.arange(16.0))
    with pytest.raises(jax.errors.JaxRuntimeError, match="lost"):
        cuda.array_to_tensor(jnp.arange(16.0))


def test_no_event_enters_a_capture(fake_gpu: FakeGpu) -> None:
    log = fake_gpu.log
    array = jnp.arange(16.0).block_until_ready()
    fake_gpu.stream.capturing = True
    tensor = cuda.array_to_tensor(array)
    del tensor
    assert log == []
    fake_gpu.stream.capturing = False
    tensor = cuda.array_to_tensor(array)
    log.clear()
    del tensor  # also returns the array that was dropped during the capture
    assert log == ["jax waits for torch"] * 2
    assert not cuda._given_back_later


def test_a_reader_that_is_captured_by_now_is_waited_for_later(fake_gpu: FakeGpu) -> None:
    """The tensor's own stream is being captured when the tensor is dropped on another stream."""
    log = fake_gpu.log
    reader = fake_gpu.stream
    tensor = cuda.array_to_tensor(jnp.arange(16.0))
    log.clear()
    reader.capturing = True
    fake_gpu.stream = FakeStream("another", log)
    del tensor
    assert log == []
    tensor = cuda.array_to_tensor(jnp.arange(4.0))
    log.clear()
    del tensor  # returns itself, but not the array that is still captured
    assert log == ["jax waits for another"]
    reader.capturing = False
    tensor = cuda.array_to_tensor(jnp.arange(4.0))
    log.clear()
    del tensor
    assert sorted(log) == ["jax waits for another"] * 2 + ["jax waits for torch"]
    assert not cuda._given_back_later


def misaligned(count: int, bytes_off: int) -> torch.Tensor:
    """Returns a tensor that starts `bytes_off` bytes after a multiple of 64."""
    memory = torch.randn(count + 32)
    first = -memory.data_ptr() % 64 + bytes_off
    return memory[first // 4 :][:count]


@pytest.fixture
def cuda_tensors(fake_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Makes tensors claim to be on a GPU; returns the converted tensors in order."""
    crossed: list[torch.Tensor] = []
    device = torch.device("cuda", 0)
    for name, value in (("is_cuda", True), ("is_cpu", False), ("device", device)):
        monkeypatch.setattr(torch.Tensor, name, value)
    monkeypatch.setattr(cuda, "tensor_to_array", lambda tensor: crossed.append(tensor))
    return crossed


@pytest.mark.parametrize("bytes_off", [16, 48, 64])
@pytest.mark.parametrize("copy", [None, False])
def test_16_bytes_are_aligned_enough_on_a_gpu(
    cuda_tensors: list[torch.Tensor], bytes_off: int, copy: bool | None
) -> None:
    tensor = misaligned(5, bytes_off)
    bridge.to_jax(tensor, copy=copy)
    assert cuda_tensors[0].data_ptr() == tensor.data_ptr()


@pytest.mark.parametrize("bytes_off", [4, 8, 60])
def test_less_aligned_memory_on_a_gpu_is_copied_or_refused(
    cuda_tensors: list[torch.Tensor], bytes_off: int
) -> None:
    """JAX would accept it, but XLA would refuse every program that gets the array."""
    tensor = misaligned(5, bytes_off)
    bridge.to_jax(tensor)
    (taken,) = cuda_tensors
    assert taken.data_ptr() % 16 == 0
    assert torch.equal(taken, tensor)
    with pytest.raises(BufferError, match=r"no multiple of 16 bytes.*pass copy=None"):
        bridge.to_jax(tensor, copy=False)
    bridge.to_jax(tensor[:0], copy=False)  # without elements, no address is used
    assert [t.numel() for t in cuda_tensors] == [5, 0]


@pytest.fixture
def slow() -> Any:
    """Returns a kernel that keeps torch's current stream busy for some milliseconds."""
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


@on_gpu
@pytest.mark.parametrize("elements", [1, 2, 3, 4])
def test_programs_of_jax_take_a_tensor_wherever_it_starts(elements: int) -> None:
    x = torch.randn(33, device="cuda")
    part = x[elements:]
    assert float(jax.jit(jnp.sum)(bridge.to_jax(part))) == pytest.approx(part.sum().item(), 1e-4)
    shared = elements % 4 == 0
    if shared:
        assert bridge.to_torch(bridge.to_jax(part, copy=False)).data_ptr() == part.data_ptr()
    else:
        with pytest.raises(BufferError, match="16 bytes"):
            bridge.to_jax(part, copy=False)
