"""A comparison keeps fingerprints instead of arrays, and takes those of torch once."""

from __future__ import annotations

import heapq
import inspect
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

import bridge
from bridge.compared.recording import recorder as recorder_module
from bridge.compared.recording.recorder import Recorder
from bridge.compared.recording.tape import _Bind
from bridge.compared.replay import Replay
from tests.compare.test_ports_of_others import BUCKETS, LONG, buckets

LAYERS, ROWS, COLUMNS = 30, 32, 24  # more wrong layers than arrays of torch that are kept at a time
LARGEST = 64


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(COLUMNS), nn.Linear(COLUMNS, COLUMNS)

    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.gelu(self.inner(self.norm(x)))


def port(weights: dict[str, Any], x: Any, wrong: int) -> Any:
    """The first layers of the chain have the other GELU."""
    for k in range(LAYERS):
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred * centred).mean(-1, keepdims=True)
        y = centred / jnp.sqrt(variance + 1e-5)
        y = y * weights[f"{k}.norm.weight"] + weights[f"{k}.norm.bias"]
        y = y @ weights[f"{k}.inner.weight"].T + weights[f"{k}.inner.bias"]
        x = x + jax.nn.gelu(y, approximate=k < wrong)
    return x


class Ledger:
    """The arrays of both sides that are alive, counted by weak references.

    Attributes:
      made: bytes of all arrays.
      peak: the most bytes that were alive at a time.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = self.peak = 0
        self.sizes: list[int] = []  # of the values of torch's first run
        self._alive: dict[Any, tuple[Any, int]] = {}
        self._parameters: set[int] = set()
        append, call = Recorder._append, _Bind.__call__

        def noted_append(recorder: Any, *args: Any, **kwargs: Any) -> int:
            index = append(recorder, *args, **kwargs)
            tensor, kind = args[3], args[4]
            storage = StorageWeakRef(tensor.untyped_storage())
            if kind == "leaf":
                self._parameters.add(storage.cdata)
            elif storage.cdata not in self._parameters:
                size = tensor.untyped_storage().nbytes()
                self._note(storage.cdata, lambda: not storage.expired(), size)
                if not recorder.wanted:
                    self.sizes.append(tensor.nbytes)
            kept = recorder.recording.arrays.get(index)
            if kept is not None:
                self._note_array(kept)
            return index

        def noted_call(bind: Any, *arrays: Any) -> list[Any]:
            results: list[Any] = call(bind, *arrays)
            for array in results:
                self._note_array(array)
            return results

        monkeypatch.setattr(Recorder, "_append", noted_append)
        monkeypatch.setattr(_Bind, "__call__", noted_call)

    def _note_array(self, array: Any) -> None:
        while isinstance(getattr(array, "base", None), np.ndarray):
            array = array.base
        is_own = isinstance(array, jax.Array) or array.flags.owndata
        if is_own or isinstance(array.base, Tensor):  # no view of a parameter
            found = weakref.ref(array)
            self._note(id(array), lambda: found() is not None, array.nbytes)

    def _note(self, key: Any, alive: Any, size: int) -> None:
        self._alive = {k: v for k, v in self._alive.items() if v[0]()}
        if key not in self._alive:
            self._alive[key] = alive, size
            self.made += size
        self.peak = max(self.peak, sum(size for _, size in self._alive.values()))


def compared(wrong: int, gradients: bool = False) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(*[Residual() for _ in range(LAYERS)])
    weights = bridge.to_jax({name: p.detach() for name, p in model.named_parameters()})
    x = torch.randn(ROWS, COLUMNS)
    report = bridge.compare(model, lambda x: port(weights, x, wrong), x, gradients=gradients)
    counts = [part.count for part in report.parts][: 1 if gradients else None]
    assert counts == ([wrong] if wrong else []), str(report)
    return report


def test_steps_of_a_wrong_slope_are_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have the operands of torch's whole slope, with which they must not be joined."""
    monkeypatch.setitem(globals(), "LAYERS", 2)
    lines, first = inspect.getsourcelines(port)
    gelu = next(i for i, text in enumerate(lines, first) if "gelu" in text)
    report = compared(2, gradients=True)
    assert {int(part.jax.source.rpartition(":")[2]) for part in report.parts} == {gelu}, str(report)


@pytest.mark.parametrize("wrong", [0, LAYERS])
def test_arrays_alive_are_at_most_the_64_largest_values(
    wrong: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(monkeypatch)
    compared(wrong)
    largest = sum(heapq.nlargest(LARGEST, ledger.sizes))
    assert ledger.made > 4 * largest, "too few values to tell"
    assert ledger.peak <= largest


@pytest.mark.parametrize(
    ("wrong", "times"), [(0, 3.0), pytest.param(LAYERS, 5.3, marks=pytest.mark.slow)]
)
def test_gradients_hold_values_of_the_forward_pass(
    wrong: int, times: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(monkeypatch)
    compared(wrong, gradients=True)
    assert ledger.peak <= times * sum(heapq.nlargest(LARGEST, ledger.sizes))


def test_runs_for_arrays_take_no_fingerprints(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = 0

    def counted(array: np.ndarray) -> Any:
        nonlocal taken
        taken += 1
        return fingerprint(array)

    fingerprint = recorder_module.fingerprint
    monkeypatch.setattr(recorder_module, "fingerprint", counted)
    compared(0)
    once, taken = taken, 0
    compared(LAYERS)
    assert taken == once > 0


def test_no_array_is_kept_for_tokens_and_numbers_at_a_boundary(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[int] = []
    run = Replay.run

    def counted(replay: Replay, place: int) -> None:
        run(replay, place)
        substitutes = [*replay.replaced.values(), *replay.bypassed.values()]
        kept.extend(isinstance(one, np.ndarray) for one in substitutes)

    monkeypatch.setattr(Replay, "run", counted)
    x = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    report = bridge.compare(lambda x: x.exp().argmax(-1), lambda x: jnp.argmin(jnp.exp(x), -1), x)
    assert len(report.parts) == 1, str(report)
    assert kept
    count = len(kept)

    report = bridge.compare(BUCKETS, lambda x: buckets(x, "roots"), LONG)
    assert not report.parts, str(report)
    assert any("boundary" in note for note in report.notes), report.notes
    assert len(kept) > count
    assert not any(kept)
