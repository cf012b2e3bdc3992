"""The backward pass of the torch model, recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bridge.compared.recording.recorder import Place, Recorder


def run_backward(
    recorder: Recorder,
    parameters: Mapping[str, Tensor],
    result: Any,
    cotangents: list[np.ndarray],
) -> dict[str, int | None]:
    """Runs the backward pass of the outputs' sum with cotangents.

    Args:
      recorder: the recorder of the forward pass. It records this one too.
      parameters: the parameters by name.
      result: the model's tensors.
      cotangents: an array for each floating-point one of them.

    Returns:
      The value that is the gradient of each parameter, None for one without a gradient.
    """
    outputs = [t for t in result if t.is_floating_point()]
    pairs = [
        (out, torch.from_numpy(np.array(c)).to(out.dtype).reshape(out.shape))
        for out, c in zip(outputs, cotangents, strict=True)
        if out.requires_grad
    ]
    named = {name: p for name, p in parameters.items() if p.requires_grad}
    nodes = list(_nodes([out.grad_fn for out, _ in pairs]))
    handles = [node.register_prehook(_entering(recorder, node)) for node in nodes]
    try:
        with recorder:
            gradients = torch.autograd.grad(
                [out for out, _ in pairs],
                list(named.values()),
                [c for _, c in pairs],
                allow_unused=True,
            )
    finally:
        recorder.node = None
        for handle in handles:
            handle.remove()
    return {
        name: None if g is None else recorder.index_of(g)
        for name, g in zip(named, gradients, strict=True)
    }


def _nodes(roots: Sequence[Any]) -> Iterator[Any]:
    """Yields the nodes of the graph."""
    seen: set[Any] = set()
    left = [root for root in roots if root is not None]
    while left:
        node = left.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        left += [inner for inner, _ in node.next_functions if inner is not None]


def _entering(recorder: Recorder, node: Any) -> Callable[[Sequence[Tensor]], None]:
    def enter(gradients: Sequence[Tensor]) -> None:
        place = recorder.made_by.get(node)
        recorder.node = place or Place(None, "", node.name())

    return enter
