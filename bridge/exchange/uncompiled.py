"""The conversions under torch.compile: calls between two graphs, never traced.

This module is imported when dynamo first meets a conversion, because it makes torch load all of
dynamo.
"""

from __future__ import annotations

import torch

from bridge.exchange import crossing

_REASON = (
    "a JAX array is no value of a torch graph: wrap the whole JAX function with "
    "bridge.torch.from_jax, which is one operation of the graph"
)
tree_to_jax = torch.compiler.disable(crossing.tree_to_jax, reason=_REASON)
tree_to_torch = torch.compiler.disable(crossing.tree_to_torch, reason=_REASON)
