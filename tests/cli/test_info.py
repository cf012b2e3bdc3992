"""`python -m bridge info` describes the build; commands name missing packages clearly."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import bridge
from bridge._installed import VERSIONS
from bridge.cli import info
from bridge.cli.main import main


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_info_as_json():
    result = python("-m", "bridge", "info", "--json")
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    assert facts["versions"]["bridge"] == bridge.__version__
    assert facts["processor"]["isa_in_use"] in facts["processor"]["isas_usable"]
    assert set(facts["processor"]["isas_usable"]) <= set(facts["processor"]["isas_compiled_in"])
    assert facts["cuda"]["usable"] == bridge.has_cuda()
    assert facts["cuda"]["usable"] or facts["cuda"]["why_not"]


@pytest.mark.parametrize("said", ["0", "background"])
def test_info_says_how_calls_are_recorded(said, tmp_path, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setenv("BRIDGE_COMPILE", said)
    code = "from bridge.cli import info\nprint(info._torch()['autograd_records_calls_in'])\n"
    found = python("-c", code)
    assert found.returncode == 0, found.stderr
    if said == "0":
        assert found.stdout == "Python (BRIDGE_COMPILE is 0)\n"
        return
    # Other tests may have compiled it, if there is a compiler.
    assert found.stdout.startswith(("C++\n", "Python ("))
    monkeypatch.setenv("BRIDGE_CACHE_DIR", str(tmp_path))
    assert python("-c", code).stdout.startswith("Python (")
    assert not list(tmp_path.glob("*.so"))


def test_info_says_that_a_framework_is_too_old(monkeypatch):
    """It is run where something is wrong, and must not fail itself."""
    pytest.importorskip("jax")
    monkeypatch.setitem(VERSIONS, "jax", ">=99.1,<100")
    assert "bridge.jax needs jax>=99.1,<100, and jax" in info._jax()["why_not"]
    monkeypatch.undo()
    assert "why_not" not in info._jax()
    pytest.importorskip("torch")
    monkeypatch.setitem(sys.modules, "bridge.torch._adapter", None)
    assert "why_not" in info._torch()


@pytest.mark.parametrize("framework", ["torch", "jax"])
@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            "raise ImportError('libtorch_cpu.so: cannot open\\nmore')",
            "libtorch_cpu.so: cannot open",
        ),
        ("raise RuntimeError('other jaxlib')", "RuntimeError: other jaxlib"),
        ("__version__ = '0.1.0'", "0.1.0 is installed: pip install"),
    ],
)
def test_info_of_a_framework_that_cannot_be_imported(framework, code, words, tmp_path, monkeypatch):
    (tmp_path / f"{framework}.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = python("-m", "bridge", "info", "--json")
    assert found.returncode == 0, found.stderr
    why = json.loads(found.stdout)[framework]["why_not"]
    assert words in why
    assert "\n" not in why


def test_info_where_no_backend_of_jax_starts(monkeypatch):
    jax = pytest.importorskip("jax")

    def devices():
        raise RuntimeError("Unable to initialize backend 'tpu'\nmore")

    monkeypatch.setattr(jax, "devices", devices)
    monkeypatch.setattr(jax, "local_devices", devices)
    facts = info.collect()
    assert facts["jax"]["why_not"] == "RuntimeError: Unable to initialize backend 'tpu'"


def test_info_of_an_instruction_set_that_does_not_exist(monkeypatch):
    monkeypatch.setenv("BRIDGE_CPU_ISA", "x86-64-v9")
    found = python("-m", "bridge", "info", "--json")
    assert found.returncode == 0, found.stderr
    processor = json.loads(found.stdout)["processor"]
    assert "BRIDGE_CPU_ISA is 'x86-64-v9', expected one of" in processor["why_not"]
    assert processor["isa_in_use"] is None


def test_info_as_a_table(capsys, monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_USE_TFRT_GPU_CLIENT", "not set to 0 or 1")
    before = bridge.build_info()["cpu_isa"]
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert before in out
    assert "USE_TFRT_GPU_CLIENT" in out
    assert "not set to 0 or 1" in out
    assert bridge.build_info()["cpu_isa"] == before  # trying the others leaves no trace


@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_parity_needs_both_frameworks_and_says_which_is_missing(framework):
    result = python(
        "-c",
        f"import sys; sys.modules[{framework!r}] = None\n"
        "from bridge.cli.main import main; sys.exit(main(['parity', '--quick']))",
    )
    assert result.returncode == 2
    assert f"needs {framework}, which is not installed" in result.stderr


def test_help_imports_no_framework():
    result = python(
        "-c",
        "import sys\nfrom bridge.cli.main import main\n"
        "try: main(['parity', '--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'jax'} & set(sys.modules)",
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.skipif(bridge.has_cuda(), reason="there is a CUDA device")
@pytest.mark.parametrize("command", ["parity", "bench", "demo"])
def test_cuda_without_cuda_is_refused_with_the_reason(command, capsys):
    assert main([command, "--device", "cuda"]) == 2
    assert "--device cuda" in capsys.readouterr().err


def test_info_shows_what_steers_both_allocators(monkeypatch):
    code = (
        "import json, os, sys\n"
        "from bridge.cli.info import collect\n"
        "before = dict(os.environ)\n"
        "facts = collect()['allocators']\n"
        "assert dict(os.environ) == before  # nothing is set behind the user's back\n"
        "print(json.dumps(facts))"
    )
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    result = python("-c", code)
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    assert facts["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert facts["XLA_PYTHON_CLIENT_MEM_FRACTION"] is None
    assert facts["preallocates_now"] is False
    if bridge.has_cuda():
        assert any(name.startswith("torch_cuda") for name in facts)
        assert any(name.startswith("jax_") for name in facts)
