"""C++ nodes of torch's graph, and the path without them."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import grad
from torch.testing._internal.two_tensor import TwoTensor

import bridge.torch as bt
from bridge import _native
from bridge.generated import CompileError
from bridge.torch._adapter import nodes

ROOT = Path(__file__).resolve().parent.parent.parent


def loss(x: Tensor, weight: Tensor) -> Tensor:
    return bt.log_softmax(bt.rms_norm(x, weight)).square().sum()


def is_node(tensor: Tensor) -> bool:
    return type(tensor.grad_fn).__name__ == "CppFunction"


def test_calls_are_recorded_by_them(draw: Any) -> None:
    assert nodes.state() == "C++"
    x, weight = draw(3, 5, grad=True), draw(5, grad=True)
    for y in (bt.rms_norm(x, weight), bt.rms_norm(x.T, draw(3)), bt.swiglu(x[:, :4])):
        assert is_node(y)
    assert bt.rms_norm(x, weight).grad_fn.name() == "bridge::rms_normBackward"
    (edge, _), (other, _) = bt.rms_norm(x, weight).grad_fn.next_functions
    assert (edge.variable is x, other.variable is weight) == (True, True)


def test_memory_of_results(draw: Any) -> None:
    """The graph equals that of torch's Python functions, for results of every kind."""
    labels = torch.tensor([4, 0, 2])
    wide = {torch.float64: torch.float64, torch.bfloat16: torch.float32}
    for x in (draw(3, 5), draw(3, 5).to(torch.bfloat16), torch.nn.Parameter(draw(3, 5))):
        for dtype, found in ((x.dtype, bt.log_softmax(x)), (wide[x.dtype], bt.logsumexp(x))):
            assert (type(found), found.dtype, found.device) == (Tensor, dtype, x.device)
            assert found.is_contiguous()
        assert bt.token_log_probs(x, labels).shape == (3,)
    assert bt.log_softmax(draw(0, 5)).shape == (0, 5)
    assert bt.logsumexp(draw(5)).shape == ()
    row = draw(2, 5)[::2]  # one row, whose stride no element uses
    assert bt.log_softmax(row).flatten().resize_(7).shape == (7,)
    for is_inferred in (True, False):
        with torch.inference_mode(is_inferred):
            assert bt.log_softmax(draw(3, 5)).is_inference() == is_inferred


def test_cotangents_that_kernels_do_not_read_as_they_lie(draw: Any) -> None:
    x, weight = draw(3, 5, grad=True), draw(5, grad=True)
    whole, g = draw(5, 6), draw(3, 5)
    cotangents = {
        "columns": whole.T[:3],
        "one row": g[:1].expand(3, 5),
        "one number": g[0, 0].expand(3, 5),
        "opposite numbers": torch._neg_view(g),
        "zeros without memory": torch._efficientzerotensor((3, 5), dtype=torch.float64),
        "a tensor of two": TwoTensor(g, g),
    }
    for name, cotangent in cotangents.items():
        for op in (bt.rms_norm, lambda x, weight: bt.log_softmax(x) * weight):
            y = op(x, weight)
            found = grad(y, (x, weight), cotangent, retain_graph=True)
            if isinstance(cotangent, TwoTensor):
                assert [*map(type, found)] == [TwoTensor] * 2
                found, cotangent = [each.a for each in found], g
            plain = cotangent.clone(memory_format=torch.contiguous_format)
            expected = grad(y, (x, weight), plain)
            assert all(map(torch.equal, found, expected)), name


def test_absent_operands_and_several_results(draw: Any) -> None:
    x, residual, weight = draw(3, 5, grad=True), draw(3, 5, grad=True), draw(5)
    y, total = bt.rms_norm(x, weight, residual=residual)
    assert (is_node(y), y.grad_fn is total.grad_fn) == (True, True)
    g, h = draw(3, 5), draw(3, 5)
    both = grad((y, total), (x, residual), (g, h), retain_graph=True)
    alone = [grad(each, x, along, retain_graph=True)[0] for each, along in ((y, g), (total, h))]
    torch.testing.assert_close(both[0], alone[0] + alone[1], rtol=1e-12, atol=1e-12)
    assert torch.equal(both[0], both[1])
    assert torch.equal(alone[1], h)


def test_nothing_else_is_lent() -> None:
    for other in (object(), bt.log_softmax):
        with pytest.raises(ValueError, match="PyCapsule_GetPointer"):
            _native.use_function_table(other)


def test_calls_of_more_values_than_they_have_bits_for(
    draw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight, g = draw(3, 5, grad=True), draw(5, grad=True), draw(3, 5)
    monkeypatch.setattr(nodes, "MOST_VALUES", 3)
    few, many = bt.rms_norm(x, weight, eps=0.25), bt.layer_norm(x, weight, weight, eps=0.25)
    assert (is_node(few), is_node(many)) == (True, False)
    assert all(each is not None for each in grad(many, (x, weight), g))


def test_a_graph_is_gone_after_its_backward_pass(draw: Any) -> None:
    x, weight = draw(3, 5, grad=True), draw(5, grad=True)
    y = bt.rms_norm(x, weight)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    with pytest.raises(RuntimeError, match="a second time"):
        y.sum().backward()


def test_what_was_changed_meanwhile_is_noticed(draw: Any) -> None:
    x, weight = draw(3, 5), draw(5, grad=True)
    y = bt.rms_norm(x, weight)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_what_has_outlived_its_transform_is_not_recorded(draw: Any) -> None:
    x, left = draw(3, 5), []

    def keep(x: Tensor) -> Tensor:
        left.append(x)
        return x.sum()

    torch.func.grad(keep)(x)
    y = bt.bias_gelu(left[0])
    assert not y.requires_grad
    assert torch.equal(y, bt.bias_gelu(x))


def test_hooks_of_saved_tensors(draw: Any) -> None:
    x, weight = draw(3, 5, grad=True), draw(5, grad=True)
    expected = grad(loss(x, weight), (x, weight))
    packed: list[int] = []

    def pack(tensor: Tensor) -> Any:
        packed.append(tensor.numel())
        return tensor.detach().clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        value = loss(x, weight)
    assert packed
    assert all(map(torch.equal, grad(value, (x, weight)), expected))

    def fail(_: Any) -> Any:
        raise ValueError("no room")

    with (
        torch.autograd.graph.saved_tensors_hooks(fail, fail),
        pytest.raises(ValueError, match="no room"),
    ):
        loss(x, weight)


def test_nothing_is_kept_alive(draw: Any) -> None:
    """A freed node keeps nothing alive, and a living node keeps only what it saved."""
    x, weight = draw(3, 5, grad=True), draw(5, grad=True)
    h = x * 1.0
    y = bt.scaled_softmax(h, 0.5)
    alive, result = weakref.ref(h), weakref.ref(y)
    del h
    gc.collect()
    assert alive() is None
    y.sum().backward()
    del y
    gc.collect()
    assert result() is None
    loss(x, weight)  # dropped with its graph


def test_a_long_chain_is_dropped(draw: Any) -> None:
    """A long chain of nodes is freed without recursion."""
    x = draw(2, 3, grad=True)
    y = x
    for _ in range(20000):
        y = bt.bias_gelu(y)
    del y
    gc.collect()


def test_an_error_of_a_backward_pass_is_the_callers(draw: Any) -> None:
    x, weight = draw(3, 5, grad=True), draw(5)
    y = bt.rms_norm(x, weight)

    def fail(_: Any) -> None:
        raise ValueError("stop here")

    x.register_hook(fail)
    with pytest.raises(ValueError, match="stop here"):
        y.sum().backward()


@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Error detected in bridge")
def test_anomalies_are_told_by_name(draw: Any) -> None:
    x, g = draw(3, 5, grad=True), torch.full((3, 5), torch.nan, dtype=torch.float64)
    words = r"'bridge::bias_geluBackward' returned nan values in its 0th output"
    with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match=words):
        bt.bias_gelu(x).backward(g)


def test_what_is_not_asked_for_is_not_computed(draw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node computes gradients only for the operands named to `grad`."""
    x, weight = draw(300, 40, grad=True), draw(40, grad=True)
    g = draw(300, 40)
    both = grad(bt.rms_norm(x, weight), (x, weight), g)
    asked: list[Any] = []
    from bridge.torch._adapter.autograd import Plan

    own = Plan.only_step
    monkeypatch.setattr(Plan, "only_step", lambda self, *of: asked.append(of) or own(self, *of))
    y = bt.rms_norm(x, weight, eps=0.123)
    (alone,) = grad(y, weight, g)
    assert asked == [((False, True), (True,))]
    assert not torch.equal(alone, both[1])
    assert torch.equal(alone, grad(bt.rms_norm(x, weight, eps=0.123), (x, weight), g)[1])


def test_threads_of_their_own(draw: Any) -> None:
    """Several threads run forward and backward at once, on one graph and on their own."""
    x, weight = draw(30, 50, grad=True), draw(50, grad=True)
    expected = grad(loss(x, weight), (x, weight))
    shared = loss(x, weight)
    right: list[bool] = []

    def run() -> None:
        for _ in range(50):
            own = grad(loss(x, weight), (x, weight))
            of_shared = grad(shared, (x, weight), retain_graph=True)
            right.append(all(map(torch.equal, (*own, *of_shared), expected * 2)))

    threads = [threading.Thread(target=run) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert right == [True] * 200


# Between the parts of a graph torch itself reads .grad of tensors that are no leaves.
@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_compiled_autograd(draw: Any, fresh_compiler: None) -> None:
    """It calls the rules of a node without the node: graphs of equal shape compile once."""
    x, weight, cos, sin = (
        draw(2, 3, 6, grad=True),
        draw(6, grad=True),
        draw(3, 3, grad=True),
        draw(3, 3),
    )
    for eps in (1e-6, 1e-6, 0.5, 0.1):
        y = bt.rotary(bt.rms_norm(x, weight, eps=eps), cos, sin)  # shapes identify the tables
        value = bt.log_softmax(y).square().sum()
        expected = grad(value, (x, weight, cos), retain_graph=True)
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
            value.backward()
        assert all(map(torch.equal, (x.grad, weight.grad, cos.grad), expected))
        x.grad = weight.grad = cos.grad = None


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_compiled_autograd_in_one_graph(draw: Any, fresh_compiler: None) -> None:
    """The forward pass is compiled too, because dynamo refuses the node of an eager one."""
    x, weight = draw(3, 5, grad=True), draw(5, grad=True)
    expected = grad(loss(x, weight), (x, weight))
    whole = torch.compile(backend="aot_eager", fullgraph=True)
    value = torch.compile(loss, backend="aot_eager", fullgraph=True)(x, weight)
    with torch._dynamo.compiled_autograd._enable(whole):
        value.backward()
    assert all(map(torch.equal, (x.grad, weight.grad), expected))
    value = loss(x, weight)
    with (
        torch._dynamo.compiled_autograd._enable(whole),
        pytest.raises(torch._dynamo.exc.Unsupported, match="run_non_traceable_cpp_in_eager"),
    ):
        value.backward()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"CXX": "nowhere++"}, "Python (CXX is 'nowhere++', which is not on the path)"),
        ({"BRIDGE_COMPILE": "0"}, "Python"),
    ],
)
def test_without_them(tmp_path: Path, environment: dict[str, str], words: str) -> None:
    """bridge silently uses torch.autograd.Function; the numbers are the same."""
    program = """
import torch, bridge.torch as bt
from bridge.torch._adapter import nodes
x = torch.linspace(-2, 2, 12).reshape(3, 4).requires_grad_()
bt.bias_gelu(x).sum().backward()
kind = type(bt.bias_gelu(x).grad_fn).__name__
print(kind, nodes.state(), x.grad.numpy().tobytes().hex(), sep="|")
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={
            **os.environ,
            "BRIDGE_COMPILE": "now",
            "BRIDGE_CACHE_DIR": str(tmp_path),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    kind, state, bits = done.stdout.strip().split("|")
    assert (kind, state) == ("bridge::bias_geluBackward", words)
    x = torch.linspace(-2, 2, 12).reshape(3, 4).requires_grad_()
    bt.bias_gelu(x).sum().backward()
    assert x.grad is not None
    assert x.grad.numpy().tobytes().hex() == bits


@pytest.mark.processes
def test_a_module_that_is_not_right_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A separate process finds out, even if it crashes."""
    source = tmp_path / "cpp" / "bindings" / "torch" / "nodes.cpp"
    source.parent.mkdir(parents=True)
    for name in nodes._INCLUDED:
        (tmp_path / "cpp" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cpp" / name).touch()
    monkeypatch.setattr(nodes, "headers", lambda: tmp_path / "cpp")
    monkeypatch.setenv("BRIDGE_CACHE_DIR", str(tmp_path / "cache"))
    for init, words in (("__builtin_trap();", "failed"), ("return nullptr;", "SystemError")):
        source.write_text(
            f"#include <Python.h>\nPyMODINIT_FUNC PyInit_bridge_nodes() {{ {init} }}\n"
        )
        with pytest.raises(CompileError, match=words):
            nodes._Nodes().compile()
        assert not list((tmp_path / "cache").glob("*.so"))


@pytest.mark.processes
def test_a_failure_is_remembered_for_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = []

    def fails(*_: Any) -> None:
        tries.append(None)
        raise CompileError("no such header")

    monkeypatch.setenv("BRIDGE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(nodes, "run", fails)
    for again, words, count in (
        (False, "no such header$", 1),
        (False, rf"no such header\nRemove {tmp_path}/\w+\.failed to try again", 1),
        (True, "no such header$", 2),
    ):
        with pytest.raises(CompileError, match=words):
            nodes._Nodes().compile(again)
        assert len(tries) == count
    (failure,) = tmp_path.glob("*.failed")
    failure.write_bytes(b"\xff\xfe")  # damaged
    with pytest.raises(CompileError, match=r"failed to try again"):
        nodes._Nodes().compile()
    os.utime(failure, (0, 0))
    with pytest.raises(CompileError, match="no such header"):
        nodes._Nodes().compile()
    assert len(tries) == 3


@pytest.mark.long
@pytest.mark.processes
def test_the_way_without_them_is_as_right() -> None:
    """Tests of autograd's behaviour with nodes also pass with torch.autograd.Function."""
    files = ("derivatives", "modes", "routes", "transforms", "profiler")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--sample", "1"]
    done = subprocess.run(
        [*command, *(f"tests/torch/test_{name}.py" for name in files)],
        cwd=ROOT,
        env={**os.environ, "BRIDGE_TEST_NODES": "0"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout
