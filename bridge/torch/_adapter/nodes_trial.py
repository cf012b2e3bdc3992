"""Tries a module of nodes (see `nodes`) in a process of its own: a bad module may crash it.

The arguments are the module's name, its file, and the search path of the calling process.
"""

import importlib.machinery
import importlib.util
import sys
from typing import Any

name, file, *sys.path = sys.argv[1:]

import torch  # noqa: E402


def compute(operands: Any) -> Any:
    x, y = operands
    return x.detach() * y.detach(), x.detach() + 1


def pull(kept: Any, cotangents: Any, wanted: Any, likes: Any) -> Any:
    assert [*map(type, kept)] == [torch.Tensor, torch.Tensor]
    assert (wanted, likes) == ((True, False), 2)
    return cotangents[0] * kept[0] * (kept[1] - 1), None


if __name__ == "__main__":
    loader = importlib.machinery.ExtensionFileLoader(name, file)
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    recorder: Any = importlib.util.module_from_spec(spec).recorder
    # The node computes x·y; its residuals are y and the second result, x + 1.
    record = recorder("cube", (1, 3), (0,), None, compute, len, lambda *_: None, pull)
    x = torch.arange(3.0, requires_grad=True)
    for _ in range(100):
        y = record(x, x.detach() ** 2)
        assert y.grad_fn.name() == "cube"
        assert torch.equal(torch.autograd.grad(y.sum(), x)[0], x.detach() ** 3)
    try:
        torch.autograd.grad(y.sum(), x)
    except RuntimeError:
        pass
    else:
        raise AssertionError("the residuals still exist after a backward pass")
