"""The optimizers of bridge.torch.optim as optimizers of torch."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch

from bridge.torch import optim
from tests.optim.steps import PAIRS, give, gradients, parameters, tree

ORIGINALS = {"adamw": torch.optim.AdamW, "momentum": torch.optim.SGD}
CHOSEN: dict[str, dict[str, Any]] = {
    "adamw": {"lr": 1e-2, "weight_decay": 0.1},
    "momentum": {"lr": 0.1, "momentum": 0.9},
}
OURS = {"adamw": optim.AdamW, "momentum": optim.SGD}
both = pytest.mark.parametrize("name", ["adamw", "momentum"])


def run(optimizer: Any, params: Any, steps: Any) -> None:
    for grads in steps:
        give(params, grads)
        optimizer.step()


def equal(a: Any, b: Any) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


@both
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_state_goes_through_a_file(name: str, dtype: str, rng: Any) -> None:
    start, steps = tree(rng, dtype), list(gradients(rng, dtype, 4))
    params, others = parameters(start), parameters(start)
    whole = OURS[name](params.values(), **CHOSEN[name])
    run(whole, params, steps)
    halfway = OURS[name](others.values(), **CHOSEN[name])
    run(halfway, others, steps[:2])
    file = io.BytesIO()
    torch.save(halfway.state_dict(), file)
    file.seek(0)
    resumed = OURS[name](others.values(), lr=7.0)
    resumed.load_state_dict(torch.load(file))
    assert all(s.dtype is torch.float32 for p in others.values() for s in resumed.state[p].values())
    run(resumed, others, steps[2:])
    assert equal(params, others)


@both
def test_states_of_torchs_optimizer_and_back(name: str, rng: Any) -> None:
    start, steps = tree(rng, "float32"), list(gradients(rng, "float32", 4))
    params, others = parameters(start), parameters(start)
    original = ORIGINALS[name](others.values(), **CHOSEN[name])
    run(original, others, steps[:2])
    ours = OURS[name](params.values(), lr=7.0)
    ours.load_state_dict(copy.deepcopy(original.state_dict()))
    for p, other in zip(params.values(), others.values(), strict=True):
        p.data.copy_(other.data)
        assert ours.state[p].keys() == original.state[other].keys()
    run(ours, params, steps[2:3])
    run(original, others, steps[2:3])
    for key in params:
        assert torch.allclose(params[key], others[key], rtol=1e-5, atol=1e-6)
    back = ORIGINALS[name](params.values(), lr=7.0)
    back.load_state_dict(ours.state_dict())
    run(back, params, steps[3:])
    run(original, others, steps[3:])
    for key in params:
        assert torch.allclose(params[key], others[key], rtol=1e-5, atol=1e-6)
    assert back.state_dict().keys() == original.state_dict().keys()


@both
def test_a_state_of_16_bits_becomes_float32(name: str, rng: Any) -> None:
    start, steps = tree(rng, "bfloat16"), list(gradients(rng, "bfloat16", 2))
    params = parameters(start)
    original = ORIGINALS[name](params.values(), **CHOSEN[name])
    run(original, params, steps)
    saved = original.state_dict()
    ours = OURS[name](params.values(), **CHOSEN[name])
    ours.register_load_state_dict_pre_hook(lambda _, state: {**state})
    ours.load_state_dict(saved)
    key = "exp_avg" if name == "adamw" else "momentum_buffer"
    for i, p in enumerate(params.values()):
        assert ours.state[p][key].dtype is torch.float32
        assert torch.equal(ours.state[p][key], saved["state"][i][key].float())
    run(ours, params, steps)


@both
def test_parameters_and_state_keep_their_memory(name: str, rng: Any) -> None:
    params = parameters(tree(rng, "float32"))
    optimizer = OURS[name](params.values(), **CHOSEN[name])
    run(optimizer, params, gradients(rng, "float32", 1))
    memory = [(t, t.data_ptr()) for p in params.values() for t in (p, *optimizer.state[p].values())]
    versions = [p._version for p in params.values() if p.numel()]
    run(optimizer, params, gradients(rng, "float32", 2))
    assert all(t.data_ptr() == address for t, address in memory)
    assert all(
        p._version > before
        for p, before in zip((p for p in params.values() if p.numel()), versions, strict=True)
    )


def test_a_change_in_place_is_seen_by_autograd() -> None:
    w = torch.nn.Parameter(torch.ones(3))
    y = (w * w).sum()
    w.grad = torch.ones(3)
    optim.SGD([w], lr=0.1).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


@both
def test_missing_gradients_are_skipped(name: str) -> None:
    a, b = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    optimizer = OURS[name]([a, b], **CHOSEN[name])
    b.grad = torch.ones(2)
    optimizer.step()
    assert a.tolist() == [1.0, 1.0]
    assert b[0] < 1.0
    assert a not in optimizer.state


@both
def test_closures_hooks_and_schedulers(name: str, rng: Any) -> None:
    start = tree(rng, "float32")
    params, others = parameters(start), parameters(start)
    optimizer = OURS[name](params.values(), **CHOSEN[name])
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    seen: list[Any] = []
    optimizer.register_step_post_hook(lambda *_: seen.append(1))

    def closure() -> Any:
        assert torch.is_grad_enabled()
        optimizer.zero_grad()
        loss = sum((p**2).sum() for p in params.values())
        loss.backward()
        return loss

    lr = torch.tensor([CHOSEN[name]["lr"]])  # a tensor of one number
    second = OURS[name](others.values(), **{**CHOSEN[name], "lr": lr})
    for _ in range(3):
        before = sum((p.detach() ** 2).sum() for p in params.values())
        assert torch.equal(optimizer.step(closure).detach(), before)
        schedule.step()
        for p in others.values():
            p.grad = 2 * p.detach()
        second.step()
        lr *= 0.5
    assert len(seen) == 3
    assert equal(params, others)


@pytest.mark.parametrize("name", ["adamw", "momentum"])
def test_maximize_is_a_step_on_the_negative(name: str, rng: Any) -> None:
    start, steps = tree(rng, "float32"), list(gradients(rng, "float32", 3))
    params, others = parameters(start), parameters(start)
    run(OURS[name](params.values(), **CHOSEN[name], maximize=True, foreach=True), params, steps)
    negative = [{key: -g for key, g in grads.items()} for grads in steps]
    run(OURS[name](others.values(), **CHOSEN[name]), others, negative)
    assert equal(params, others)


def test_amsgrad(rng: Any) -> None:
    start, steps = tree(rng, "float64"), list(gradients(rng, "float64", 5))
    params, others = parameters(start), parameters(start)
    run(optim.AdamW(params.values(), amsgrad=True), params, steps)
    run(torch.optim.AdamW(others.values(), amsgrad=True), others, steps)
    for key in params:
        assert torch.allclose(params[key], others[key], rtol=1e-13, atol=1e-14)


def test_the_step_count_on_the_device(rng: Any) -> None:
    """A kernel reads the count if capturable is True, and no step waits for the device."""
    start, steps = tree(rng, "float32"), list(gradients(rng, "float32", 3))
    params, others = parameters(start), parameters(start)
    optimizer = optim.AdamW(params.values(), capturable=True)
    run(optimizer, params, steps)
    run(optim.AdamW(others.values()), others, steps)
    assert equal(params, others)


def test_a_compiled_model_is_trained(rng: Any) -> None:
    x = torch.from_numpy(rng.normal(size=(8, 6))).float()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))
    other = copy.deepcopy(model)
    compiled = torch.compile(model, backend="aot_eager")
    losses = []
    for run_model, own in ((compiled, model), (other, other)):
        optimizer = optim.AdamW(own.parameters(), lr=1e-2)
        for _ in range(3):
            optimizer.zero_grad()
            loss = run_model(x).square().mean()
            loss.backward()
            optim.clip_grad_norm_(own.named_parameters(), 1.0)
            optimizer.step()
        losses.append(loss.item())
    assert losses[0] == losses[1]
    assert equal(dict(model.named_parameters()), dict(other.named_parameters()))


def test_copies_and_pickles(rng: Any) -> None:
    params = parameters(tree(rng, "float32"))
    optimizer = optim.AdamW(params.values())
    run(optimizer, params, gradients(rng, "float32", 1))
    copied, others = copy.deepcopy((optimizer, params))
    steps = list(gradients(rng, "float32", 1))
    run(optimizer, params, steps)
    run(copied, others, steps)
    assert equal(params, others)


@pytest.mark.parametrize("pair", ["adamw", "nesterov"])
def test_parts_of_dtensors(pair: str, rng: Any) -> None:
    distributed = pytest.importorskip("torch.distributed")
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = distributed.device_mesh.init_device_mesh("cpu", (1,))
        value, grad = (torch.from_numpy(rng.normal(size=(6, 70))).float() for _ in range(2))
        plain = torch.nn.Parameter(value.clone())
        plain.grad = grad
        split = torch.nn.Parameter(distribute_tensor(value.clone(), mesh, [Shard(0)]))
        split.grad = distribute_tensor(grad.clone(), mesh, [Replicate()])
        norms = [optim.clip_grad_norm_([p], 1.0) for p in (plain, split)]
        assert torch.equal(*norms)
        for p in (plain, split):
            PAIRS[pair].torch([p]).step()
        assert torch.equal(split.full_tensor(), plain)
    finally:
        distributed.destroy_process_group()


def test_bad_input_is_named_before_anything_is_written() -> None:
    good = torch.nn.Parameter(torch.ones(2))
    good.grad = torch.ones(2)
    bad = torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))
    bad.grad = torch.ones_like(bad)
    sparse = torch.nn.Parameter(torch.ones(2))
    sparse.grad = torch.ones(2).to_sparse()
    for p, words in (
        (bad, "AdamW: w has dtype complex64, expected one of float16"),
        (sparse, "AdamW: w has a sparse gradient, expected a dense one"),
    ):
        optimizer = optim.AdamW([("good", good), ("w", p)])
        with pytest.raises(TypeError, match=words):
            optimizer.step()
        assert good.tolist() == [1.0, 1.0]
        assert not optimizer.state
        with pytest.raises(TypeError, match="SGD: parameter 1 of group 0 has"):
            optim.SGD([good, p]).step()
    for make in (optim.AdamW, optim.SGD):
        with pytest.raises(ValueError, match="differentiable is True, expected False"):
            make([good], differentiable=True)
        with pytest.raises(ValueError, match="Invalid learning rate: -1"):
            make([good], lr=-1)
    with pytest.raises(ValueError, match="Invalid beta parameter"):
        optim.AdamW([good], betas=(1.0, 0.9))
    with pytest.raises(ValueError, match="Nesterov momentum requires"):
        optim.SGD([good], nesterov=True)


def test_amsgrad_that_is_switched_off() -> None:
    """The group decides, as in torch, though a state keeps its largest squares."""
    results = []
    for make in (optim.AdamW, torch.optim.AdamW):
        p = torch.nn.Parameter(torch.ones(3))
        optimizer = make([p], lr=0.1, amsgrad=True)
        for scale, is_on in ((1.0, True), (0.01, False), (0.01, False)):
            optimizer.param_groups[0]["amsgrad"] = is_on
            p.grad = torch.full((3,), scale)
            optimizer.step()
        results.append(p.detach())
    torch.testing.assert_close(*results, rtol=1e-6, atol=0)
