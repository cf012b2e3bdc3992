"""`bridge.torch.all_gather` under autograd's modes, torch.func, torch.compile, DDP and FSDP2."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.torch_processes import JOIN

_CHECKS = "tests.distributed.gather_transform_checks"


@pytest.fixture(scope="module", params=(1, 2, 3), ids=lambda size: f"{size}-ranks")
def ranks(request: pytest.FixtureRequest, processes: Any) -> Any:
    return lambda: processes(JOIN, request.param)


@pytest.mark.parametrize(("dim", "tiled"), [(0, True), (1, True), (1, False)])
def test_forward_mode(ranks: Any, dim: int, tiled: bool) -> None:
    ranks().run(f"{_CHECKS}:forward_mode", dim=dim, tiled=tiled)


@pytest.mark.long
@pytest.mark.parametrize(
    ("in_dim", "dim", "tiled"), [(0, 0, True), (1, 1, True), (2, 0, False), (0, 2, False)]
)
def test_vmap(ranks: Any, in_dim: int, dim: int, tiled: bool) -> None:
    ranks().run(f"{_CHECKS}:vmapped", in_dim=in_dim, dim=dim, tiled=tiled)


@pytest.mark.sampled(14)
@pytest.mark.parametrize(
    "check",
    [
        "mixed_modes",
        "vjp_of_func",
        "gradients_in_batches",
        "gradcheck",
        "asynchronous",
        "checkpointed",
        "under_ddp",
        "under_fsdp",
        "compiled_with_mesh",
        "compiled_transform",
        "compiled_drop_in",
        "compiled_asynchronously",
        "traced",
        "collective_tensors",
    ],
)
def test_transforms(ranks: Any, check: str) -> None:
    ranks().run(f"{_CHECKS}:{check}")


@pytest.mark.parametrize(
    ("backend", "rule", "dim", "tiled"),
    [
        ("aot_eager", "sum", 0, True),
        ("aot_eager", "mean", 1, False),
        ("aot_eager", "local", 1, True),
        ("inductor", "sum", 1, True),
    ],
)
def test_compiled(ranks: Any, backend: str, rule: str, dim: int, tiled: bool) -> None:
    ranks().run(
        f"{_CHECKS}:compiled", timeout=240, backend=backend, rule=rule, dim=dim, tiled=tiled
    )


def test_local_backward_sends_zero_bytes(processes: Any) -> None:
    for local, total, forward in processes(JOIN, 2).run(f"{_CHECKS}:local_sends_nothing"):
        assert local == 0
        assert total >= 1 << 18
        assert forward >= 1 << 18
