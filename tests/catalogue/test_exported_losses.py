"""linear_cross_entropy in graphs of ops: torch.export, torch.jit.trace and make_fx."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

import bridge.torch

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),  # the checks read sizes
]

LABELS = torch.tensor([1, 2, -100, 4, 10])


class Model(torch.nn.Module):
    """A model whose loss has another term too, so that a wrong scale of gradients is seen."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.body = torch.nn.Linear(6, 6, dtype=torch.float64)
        self.loss = bridge.torch.LinearCrossEntropyLoss(6, 11, dtype=torch.float64, **options)

    def forward(self, x: Any, labels: Any) -> Any:
        hidden = self.body(x)
        return self.loss(hidden, labels).square().sum() + hidden.square().mean()


def of_first_and_second_order(model: Any, x: Any, labels: Any) -> list[Any]:
    parameters = list(model.parameters())
    value = model(x, labels)
    first = torch.autograd.grad(value, parameters, create_graph=True)
    once = torch.autograd.grad(model(x, labels), parameters)
    of_it = sum([(gradient**3).sum() for gradient in first])
    return [value, *first, *once, *torch.autograd.grad(of_it, parameters)]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("options", [{}, {"reduction": "none", "bias": True}, {"chunk": 2}])
def test_an_exported_module_has_all_its_gradients(strict: bool, options: Any) -> None:
    torch.manual_seed(0)
    model, x = Model(**options), torch.randn(5, 6, dtype=torch.float64)
    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(
        model, (x, LABELS), strict=strict, dynamic_shapes=({0: rows}, {0: rows})
    )
    exported: Any = program.run_decompositions().module()
    exported.load_state_dict(model.state_dict())
    longer = torch.randn(15, 6, dtype=torch.float64)
    for given in ((x, LABELS), (longer, LABELS.repeat(3))):
        torch.testing.assert_close(
            of_first_and_second_order(exported, *given), of_first_and_second_order(model, *given)
        )
    state = {name: p.detach() for name, p in model.named_parameters()}
    found, expected = (
        torch.func.grad(lambda state, m=m: functional_call(m, state, (x, LABELS)))(state)
        for m in (exported, model)
    )
    torch.testing.assert_close(found, expected)
    with pytest.raises(NotImplementedError, match=r"a graph of torch\.export"):
        torch.func.jvp(lambda s: functional_call(exported, s, (x, LABELS)), (state,), (state,))


@pytest.mark.parametrize("bits", [None, "portable"])
@pytest.mark.parametrize("chunk", [None, 3])
def test_jit_trace(chunk: int | None, bits: str | None) -> None:
    """The traced function accepts other numbers of rows."""
    weight = torch.randn(11, 6, dtype=torch.float64, requires_grad=True)

    def loss(hidden: Any, weight: Any, labels: Any) -> Any:
        return bridge.torch.linear_cross_entropy(hidden, weight, labels, chunk=chunk, bits=bits)

    x = torch.randn(5, 6, dtype=torch.float64)
    traced = torch.jit.trace(loss, (x, weight, LABELS))
    for rows in (5, 1, 600):
        given = torch.randn(rows, 6, dtype=torch.float64, requires_grad=True)
        labels = torch.randint(0, 11, (rows,))
        found, expected = (f(given, weight, labels) for f in (traced, loss))
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(
            *(torch.autograd.grad(value, (given, weight)) for value in (found, expected))
        )


@pytest.mark.parametrize("bits", [None, "portable"])
@pytest.mark.parametrize("of", ["value", "gradients", "by torch.func", "forward mode"])
def test_a_symbolic_trace_takes_every_row(of: str, bits: str | None) -> None:
    """The graph of two chunks has no guards: run on more rows, it must not leave them out."""
    several = 5 if bits is None else 300

    def loss(hidden: Any, weight: Any) -> Any:
        labels = torch.arange(hidden.shape[0]) % 11
        return bridge.torch.linear_cross_entropy(hidden, weight, labels, chunk=3, bits=bits)

    def gradients(*given: Any) -> Any:
        leaves = [each.detach().requires_grad_() for each in given]
        return torch.autograd.grad(loss(*leaves), leaves)

    function = {
        "value": loss,
        "gradients": gradients,
        "by torch.func": torch.func.grad(loss, (0, 1)),
        "forward mode": lambda *given: torch.func.jvp(loss, given, given),
    }[of]
    weight = torch.randn(11, 6, dtype=torch.float64)
    traced = make_fx(function, tracing_mode="symbolic")(torch.randn(several, 6).double(), weight)
    for rows in (several, 2, 2 * several, 0):
        hidden = torch.randn(rows, 6, dtype=torch.float64)
        torch.testing.assert_close(traced(hidden, weight), function(hidden, weight))
