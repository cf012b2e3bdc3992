"""The two exchanges of an all-gather on plain tensors: `gather` and its transpose `reduce`.

They use torch's functional collectives, which eager mode runs and `torch.compile` schedules; in
eager mode, all-gathers over Gloo use `direct`. Arrays are exchanged along dimension 0, where the
ranks' parts are adjacent in memory. For another dimension the result is a tensor with permuted
strides. No copy of the gathered array's size is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bridge import _native
from bridge._private.torch_distributed import (
    all_gather_into_tensor,
    reduce_scatter_tensor,
    wait_tensor,
)
from bridge.generated import load_built_kernels
from bridge.torch._collectives import direct
from bridge.torch._collectives.direct import Pending
from bridge.torch._collectives.groups import Ranks, explained

# Every transport takes these dtypes. Other arrays are gathered as bytes.
_SENT_AS_THEY_ARE = frozenset(
    {
        torch.uint8,
        torch.int8,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
    }
)
_SUMMED_AS_THEY_ARE = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})

Started = Tensor | Pending  # an exchange under way


@dataclass(frozen=True)
class Exchange:
    """The parameters of an exchange and of its gradient.

    Attributes:
      ranks: the ranks that take part.
      dim: dimension of the gathered array along which the ranks' parts are placed, from 0.
      tiled: the parts are placed side by side along `dim`; else `dim` is new, with one element
        for each rank.
      rule: the gradient rule: "sum", "mean" or "local".
    """

    ranks: Ranks
    dim: int
    tiled: bool
    rule: str

    def batched(self) -> Exchange:
        """Returns the exchange of arrays with one more dimension in front."""
        return replace(self, dim=self.dim + 1)

    def with_rule(self, rule: str) -> Exchange:
        return self if self.rule == rule else replace(self, rule=rule)


def gather(x: Tensor, exchange: Exchange) -> Tensor:
    """Returns the parts of all ranks together."""
    ranks = exchange.ranks
    is_plain = exchange.dim == 0 and exchange.tiled and x.dtype in _SENT_AS_THEY_ARE
    if is_plain and ranks.size > 1 and not torch.compiler.is_compiling():
        try:
            if (found := direct.gather(x, ranks)) is not None:
                return found
        except RuntimeError as error:
            raise explained(error, "all_gather", ranks) from error
    return finish_gather(start_gather(x, exchange), x, exchange)


def start_gather(x: Tensor, exchange: Exchange) -> Started:
    """Starts sending x. Before `finish_gather`, do not write x and do not read the answer."""
    ranks = exchange.ranks
    if ranks.size == 1:
        return x.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    packed = _compact(_packed(x, exchange) if exchange.tiled else x)
    if packed.numel() == 0:
        return packed
    if packed.dtype not in _SENT_AS_THEY_ARE:
        packed = _numbers_of(packed)
        if packed.dtype not in _SENT_AS_THEY_ARE:
            packed = packed.view(torch.uint8)
    if torch.compiler.is_compiling():
        return all_gather_into_tensor(packed, ranks.size, ranks.name)
    if packed.is_cuda:  # load kernels now: no rank may load one while it waits for the others
        _native.prepare_cuda(packed.get_device())
        load_built_kernels(packed.get_device())
    try:
        if (pending := direct.start(packed, ranks)) is not None:
            return pending
        return all_gather_into_tensor(packed, ranks.size, ranks.name)
    except RuntimeError as error:
        raise explained(error, "all_gather", ranks) from error


def gathered_shape(shape: Sequence[int], exchange: Exchange) -> tuple[list[int], int]:
    """Returns the shape of `gather`'s result, and its dimension that is outermost in memory."""
    size, dim = exchange.ranks.size, exchange.dim
    result = list(shape)
    if exchange.tiled:
        result[dim] *= size
    else:
        result.insert(dim, size)
    return result, dim if size > 1 else 0


def part_shape(shape: Sequence[int], exchange: Exchange) -> tuple[list[int], int]:
    """Returns the shape of `reduce`'s result, and its dimension that is outermost in memory."""
    size, dim = exchange.ranks.size, exchange.dim
    result = list(shape)
    if exchange.tiled:
        result[dim] //= size
        return result, dim if size > 1 else 0
    result.pop(dim)
    return result, 0


def finish_gather(answer: Started, x: Tensor, exchange: Exchange) -> Tensor:
    """Waits for the answer of `start_gather(x, exchange)`, and returns it in its final shape."""
    ranks, dim = exchange.ranks, exchange.dim
    if ranks.size == 1:
        assert isinstance(answer, Tensor)
        return answer if exchange.tiled else _own(answer.unsqueeze(dim))
    if dim == 0 and exchange.tiled and x.dtype in _SENT_AS_THEY_ARE and x.numel():
        return _own(_waited("all_gather", answer, ranks))
    shape, _ = gathered_shape(x.shape, exchange)
    shape.insert(0, shape.pop(dim))
    if x.numel() == 0:
        return _own(torch.empty(shape, dtype=x.dtype, device=x.device).movedim(0, dim))
    received = _waited("all_gather", answer, ranks)
    if x.is_complex():
        received = torch.view_as_complex(received.view(-1, 2))
    gathered = received.view(x.dtype).view(shape)
    return _own(gathered.movedim(0, dim) if dim else gathered)


def reduce(g: Tensor, exchange: Exchange) -> Tensor:
    """Returns this rank's part of the sum of g over the ranks."""
    ranks, dim = exchange.ranks, exchange.dim
    if ranks.size == 1:
        part = g if exchange.tiled else g.squeeze(dim)
        return part.clone(memory_format=torch.contiguous_format)
    packed = _compact(_packed(g, exchange))
    shape = [packed.shape[0] // ranks.size, *packed.shape[1:]]
    if packed.numel() == 0:
        part = torch.empty(shape, dtype=g.dtype, device=g.device)
        return _own(part.movedim(0, dim) if exchange.tiled else part.squeeze(0))
    if packed.dtype not in _SUMMED_AS_THEY_ARE:
        # No transport adds 8-bit floats.
        packed = _numbers_of(packed) if packed.is_complex() else packed.to(torch.float32)
    received = _waited("all_gather's gradient", _start_reduce(packed, ranks), ranks)
    if g.is_complex():
        received = torch.view_as_complex(received.view(-1, 2))
    part = received.to(g.dtype).view(shape)
    if not exchange.tiled:
        return _own(part.squeeze(0))
    return _own(part.movedim(0, dim) if dim else part)


def _start_reduce(packed: Tensor, ranks: Ranks) -> Tensor:
    if torch.compiler.is_compiling():
        return reduce_scatter_tensor(packed, "sum", ranks.size, ranks.name)
    try:
        return reduce_scatter_tensor(packed, "sum", ranks.size, ranks.name)
    except RuntimeError as error:
        raise explained(error, "all_gather's gradient", ranks) from error


def _compact(x: Tensor) -> Tensor:
    """Returns contiguous x with no conjugate or negative bit set."""
    if torch.compiler.is_compiling() or x.is_conj() or x.is_neg():
        x = x.resolve_conj().resolve_neg()
    return x.contiguous()


def _packed(x: Tensor, exchange: Exchange) -> Tensor:
    return x.movedim(exchange.dim, 0) if exchange.dim else x


def _numbers_of(x: Tensor) -> Tensor:
    """Returns contiguous x in one dimension, a complex number as two real ones."""
    flat = x.view(-1)
    return torch.view_as_real(flat).view(-1) if x.is_complex() else flat


def _waited(function: str, started: Started, ranks: Ranks) -> Tensor:
    if torch.compiler.is_compiling():
        return wait_tensor(started)
    try:
        return direct.finish(started) if isinstance(started, Pending) else wait_tensor(started)
    except RuntimeError as error:
        raise explained(error, function, ranks) from error


def _own(x: Tensor) -> Tensor:
    """Detaches x from its base, so that nothing treats it as a view; no other tensor shares it."""
    return x if x._base is None or torch.compiler.is_compiling() else x.detach()
