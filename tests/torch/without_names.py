"""Runs calls of bridge with each private name of torch removed in turn.

`python -m tests.torch.without_names PART PARTS` prints a line of JSON for each of every PARTS-th
name, from the PART-th on: the removed names, True if bridge cannot work without them, and the
outcome of the calls: "" or the error. Without PART and PARTS it removes all names with a fallback
at once.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import torch

# bridge is not imported here: names must be removed before its import.

# Without these, a call takes a path that uses no other name.
LEADING = {"torch._C._len_torch_dispatch_stack", "torch._C._len_torch_function_stack"}


def torch_calls() -> None:
    import bridge.torch as bt

    x, bias = torch.randn(3, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    bt.bias_gelu(x, bias).sum().backward()
    assert x.grad is not None
    assert bias.grad is not None
    (slope,) = torch.autograd.grad(bt.scaled_softmax(x, 0.5).square().sum(), x, create_graph=True)
    slope.sum().backward()
    with torch.no_grad():
        bt.scaled_softmax(x, 0.5, out=torch.empty(3, 8))
    each = torch.func.grad(lambda row: bt.bias_gelu(row, bias.detach()).sum())(x.detach()[0])
    assert each.shape == (8,)
    bt.all_gather(x).sum().backward()
    view = bt.make_viewless_tensor(x[1:], requires_grad=False, keep_graph=True)
    assert view.shape == (2, 8)


def crossing_calls() -> None:
    import bridge
    from bridge.torch import from_jax

    x = torch.randn(3, 8, requires_grad=True)
    from_jax(jnp.sin)(x).sum().backward()
    assert x.grad is not None
    assert torch.allclose(x.grad, x.detach().cos())
    tree = bridge.to_jax({"x": x.detach()[:, 1:]})
    assert bridge.to_torch(tree)["x"].shape == (3, 7)


def start(task: Callable[[], Any]) -> Callable[[], Any]:
    """Begins a task in a forked process; the returned function waits for its answer."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            answer = task()
        except BaseException:
            answer = traceback.format_exc()
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)

    def answer() -> Any:
        with os.fdopen(reading) as file:
            text = file.read()
        status = os.waitpid(child, 0)[1]
        return json.loads(text) if text else f"the process ended with status {status}"

    return answer


def names() -> dict[str, bool]:
    """Returns each name, except attributes, and True if it is needed."""
    from bridge._private.torch_distributed import names  # with those of bridge._private.torch

    return {entry.path: entry.is_needed for entry in names.entries if "." in entry.path}


def calls_without(paths: Iterable[str], calls: Sequence[Callable[[], None]]) -> str:
    from bridge._private import names

    names.hidden.update(paths)
    try:
        for call in calls:
            call()
    except ImportError as error:
        return f"ImportError: {error}"
    return ""


def main(arguments: Sequence[str]) -> None:
    known = start(names)()
    optional = [path for path, is_needed in known.items() if not is_needed]
    both = [torch_calls, crossing_calls]
    if arguments:
        part, parts = map(int, arguments)
        alone = [([path], is_needed, [torch_calls]) for path, is_needed in known.items()]
        cases = alone[part::parts]
    else:
        others = [path for path in optional if path not in LEADING]
        cases = [(optional, False, both), (others, False, both)]
    running: list[tuple[list[str], bool, Callable[[], Any]]] = []

    def report() -> None:
        paths, is_needed, answer = running.pop(0)
        print(json.dumps({"paths": paths, "needed": is_needed, "error": answer()}), flush=True)

    for paths, is_needed, calls in cases:
        running.append((paths, is_needed, start(lambda p=paths, c=calls: calls_without(p, c))))  # type: ignore[misc]
        if len(running) >= (os.cpu_count() or 1):
            report()
    while running:
        report()


if __name__ == "__main__":
    main(sys.argv[1:])
