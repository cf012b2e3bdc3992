"""`python -m bridge compare` exits with 0, with 1 for a wrong port, and with 2 for bad names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bridge.cli.main import main

pytest.importorskip("torch")
pytest.importorskip("jax")

PORT = """
import jax
import jax.numpy as jnp
import numpy as np
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.GELU(), torch.nn.Linear(5, 4))
weights = [jnp.asarray(p.detach().numpy()) for p in model.parameters()]
x = np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)


def port(x, approximate=False, stop=False):
    a, b, c, d = weights
    y = jax.nn.gelu(x @ a.T + b, approximate=approximate)
    return y @ (jax.lax.stop_gradient(c) if stop else c).T + d


def right():
    return model, port, x


def wrong():
    return model, lambda x: port(x, True), x


def as_dict():
    return {
        "torch_model": model,
        "jax_function": lambda x: port(x.T),
        "inputs": (x,),
        "jax_inputs": (x.T,),
    }


def stopped():
    return model, lambda x: port(x, stop=True), x


def short():
    return {"torch_model": model, "inputs": (x,)}


def other():
    return 3


def shapes():
    return model, port, x[:, :2]


def unknown():
    return {"torch_model": model, "jax_function": port, "input": (x,)}


text = "no function"
"""


@pytest.fixture
def ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a module of ports, which no other test imports."""
    (tmp_path / "ports_of_a_command.py").write_text(PORT)
    (tmp_path / "broken_ports.py").write_text("import no_such_module_at_all\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "ports_of_a_command", raising=False)
    return tmp_path


@pytest.mark.parametrize("function", ["right", "as_dict"])
def test_a_right_port_gives_0(ports: Path, function: str, capsys: pytest.CaptureFixture) -> None:
    assert main(["compare", f"ports_of_a_command:{function}"]) == 0
    assert "The models are the same" in capsys.readouterr().out


def test_a_wrong_port_gives_1_and_a_page(ports: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["compare", "ports_of_a_command:wrong", "--html", "page.html"]) == 1
    out = capsys.readouterr().out
    assert "The models part at 1 line." in out
    assert "GELU: erf here, tanh there" in out
    assert "ports_of_a_command.py:15" in out
    assert "GELU: erf here, tanh there" in (ports / "page.html").read_text()


def test_gradients_are_compared_when_asked_for(ports: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["compare", "ports_of_a_command:stopped"]) == 0
    assert main(["compare", "ports_of_a_command:stopped", "--gradients"]) == 1
    assert "no gradient in JAX equals that of 2.weight" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ports_of_a_command"], "is no MODULE:FUNCTION, such as my_port:arguments"),
        (["ports_of_a_command:"], "is no MODULE:FUNCTION"),
        ([":right"], "is no MODULE:FUNCTION"),
        (["no_such_ports:right"], "no_such_ports:right: there is no module no_such_ports"),
        (["broken_ports:right"], "there is no module no_such_module_at_all"),
        (["./ports:right"], "as Python imports it, not as a path"),
        (["ports_of_a_command.py:right"], "without .py"),
        (["ports_of_a_command:none"], "ports_of_a_command has no none"),
        (["ports_of_a_command:text"], "text is a str; expected a function without arguments"),
        (["ports_of_a_command:port"], "port takes arguments; expected a function without"),
        (["ports_of_a_command:short"], "returns a dict without 'jax_function'"),
        (["ports_of_a_command:other"], "returns int; expected a tuple"),
        (["ports_of_a_command:unknown"], "unexpected keyword argument 'input'"),
        (["ports_of_a_command:shapes"], "torch_model does not take the inputs"),
        (["ports_of_a_command:right", "--html", "none/page.html"], "its folder does not exist"),
    ],
)
def test_bad_names_give_2_and_one_line(
    ports: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture
) -> None:
    assert main(["compare", *arguments]) == 2
    said = capsys.readouterr()
    assert not said.out
    assert said.err.startswith("bridge compare: ")
    assert words in said.err
    assert said.err.count("\n") == 1


def test_as_a_process(ports: Path) -> None:
    run = [sys.executable, "-m", "bridge", "compare", "ports_of_a_command:wrong"]
    result = subprocess.run(run, capture_output=True, text=True, timeout=200, check=False)
    assert result.returncode == 1, result.stderr
    assert result.stdout.startswith("The models part at 1 line.")
    assert not result.stderr
