"""The time at which programs are compiled, and the behaviour without a compiler."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import bridge
from bridge import _native
from bridge import lang as bl
from bridge.generated import CompileError, cache, compiler, requests
from bridge.generated.requests import Request
from bridge.ops.traced import traced
from bridge.ops.usual_programs import usual_requests
from bridge.torch._adapter import nodes
from tests.declared.ops import SEVEN, rms_norm

pytestmark = pytest.mark.processes

# Background compilers yield to other tests: a minute of work may take ten.
SECONDS = 1200

# Runs an op forward and backward, and prints the outcome of its compilation. Nodes of torch's
# graph, which take ten times as long to compile as the op, come from the build.
PROGRAM = f"""
import os, warnings
import torch
import bridge
from bridge import _native
from bridge.torch._adapter import nodes

own = os.environ["BRIDGE_CACHE_DIR"]
os.environ["BRIDGE_CACHE_DIR"] = {os.environ["BRIDGE_CACHE_DIR"]!r}
nodes.prospect()
os.environ["BRIDGE_CACHE_DIR"] = own

@bridge.op
def soft_relu(x: bridge.Full):
    return x * bridge.lang.sigmoid(3.0 * x)

with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    for _ in range(2):
        x = torch.linspace(-2, 2, 9000).reshape(9, 1000).requires_grad_()
        y = soft_relu(x)
        y.sum().backward()
        assert bridge.wait({SECONDS})
assert torch.allclose(y, x * torch.sigmoid(3 * x))
print(_native.generated_calls(), *[str(w.message) for w in warned if w.category is RuntimeWarning])
"""


def run(cache: Path, **environment: str) -> tuple[int, str]:
    """Returns the number of calls of compiled code, and the warnings."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "BRIDGE_CACHE_DIR": str(cache), "BRIDGE_COMPILE": "", **environment},
        capture_output=True,
        text=True,
        timeout=2 * SECONDS,
    )
    assert done.returncode == 0, done.stderr
    calls, _, warned = done.stdout.strip().partition(" ")
    return int(calls), warned


@pytest.mark.long
def test_the_first_call_asks_and_later_ones_take_it(tmp_path: Path) -> None:
    assert run(tmp_path) == (2, "")
    assert len(list(tmp_path.glob("*.so"))) == 2  # for its two passes
    # From the cache: the compiler is only asked for its version.
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert run(tmp_path, BRIDGE_COMPILE="now") == (4, "")
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert run(tmp_path, BRIDGE_COMPILE="0") == (0, "")


def test_an_unknown_mode_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    @bridge.op
    def tripled(x: bridge.Full) -> Any:
        return 3.0 * x

    monkeypatch.setenv("BRIDGE_COMPILE", "never")
    words = "BRIDGE_COMPILE is 'never', expected 'background', 'now' or '0'"
    with pytest.warns(RuntimeWarning, match=words):
        tripled(torch.ones(2, 3))
    tripled(torch.ones(2, 3, dtype=torch.float64))  # warns once
    assert bridge.wait(SECONDS)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"PATH": "", "CXX": ""}, "no C++ compiler: CXX is not set, and none of g++, clang++"),
        ({"CXX": "nowhere++ -pipe"}, "CXX is 'nowhere++ -pipe', which is not on the path"),
        ({"CXX": "false"}, "false --version failed"),
        ({"CXX": "g++ 'x"}, 'CXX is "g++ \'x": No closing quotation'),
        ({"BRIDGE_CACHE_DIR": "/dev/null/cache"}, "the cache cannot be used"),
    ],
)
def test_what_cannot_be_compiled_is_interpreted_with_one_warning(
    tmp_path: Path, environment: dict[str, str], words: str
) -> None:
    calls, warned = run(tmp_path, **environment)
    assert calls == 0
    assert words in warned
    # The message names the called function, not its derivative, and not the ops that follow.
    assert warned.count("soft_relu and all programs that the build has not compiled run") == 1
    assert warned.count("interpreter") == 1


def test_a_program_that_is_rejected_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others run compiled until several have been rejected."""
    compiled = []

    def compile(request: Request) -> None:
        compiled.append(request)
        if len(compiled) != 2:
            raise cache.RejectedError("other bits")

    monkeypatch.setattr(Request, "compile", compile)
    worker = requests._Worker()
    found = traced(rms_norm.declaration, (True, True), 1e-6)
    asked = [r for dtype in ("float32", "bfloat16") for r in usual_requests(found, dtype)]
    with pytest.warns(RuntimeWarning, match=r"rms_norm .*runs? in .* other bits") as warned:
        [worker.now(request) for request in asked]
    assert compiled == asked[:4]
    assert [" and all programs that the build has not" in str(w.message) for w in warned] == [
        *(False, False, True)
    ]


def broken_compiler(folder: Path, script: str) -> str:
    path = folder / "compiler"
    path.write_text(f'#!/bin/sh\ncase "$1" in --version) echo fake 1;; *) {script};; esac\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo no such flag >&2; exit 1", "failed:\nno such flag"),
        ("exit 0", "failed: it wrote nothing"),
        ('for last; do :; done; echo text > "$last"', "rms_norm: program: "),  # no library
    ],
)
def test_errors_of_compilers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, words: str
) -> None:
    monkeypatch.setenv("BRIDGE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", broken_compiler(tmp_path, script))
    with pytest.raises(CompileError, match=words):
        rms_norm.compile(dtypes=["float32"])
    # No partial file stays that a later call would take for a whole one.
    assert not list((tmp_path / "cache").glob("*.so"))


def test_half_a_library_is_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIDGE_CACHE_DIR", str(tmp_path))
    [request, *_] = list(_usual())
    request.compile()
    [library] = tmp_path.glob("*.so")
    whole = library.read_bytes()
    _native.forget_generated()
    library.unlink()  # the open library stays mapped
    library.write_bytes(whole[: len(whole) // 2])
    request.compile()
    assert library.read_bytes() == whole


def test_a_checksum_of_anything_is_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIDGE_CACHE_DIR", str(tmp_path))
    for _ in range(2):
        found = cache.cached(["parts"], ".txt", lambda work: _written(work / "made"))
        assert found.read_text() == "content"
        checksum = found.with_suffix(".sha256")
        assert len(checksum.read_text()) == 64
        checksum.write_bytes(b"\xff" * 64)


def _written(path: Path) -> Path:
    path.write_text("content")
    return path


def test_compilers_print_what_they_like_and_start_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\nprintf '\\377 wrong' >&2; printf '\\376 1.0'; sleep $SLEEP\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("SLEEP", "0")
    assert cache.version_of((str(compiler),)).endswith(" 1.0")
    with pytest.raises(cache.CompileError, match="it wrote nothing"):
        cache.run([str(compiler)], compiler, tmp_path / "made")
    monkeypatch.setenv("SLEEP", "60")
    monkeypatch.setattr(cache, "_running", set())
    monkeypatch.setattr(cache, "_is_ending", threading.Event())
    cache.stop()  # as at exit, before the compiler has started
    with pytest.raises(cache.CompileError, match="failed:\n"):  # without output of the compiler
        cache.run([str(compiler)], compiler, tmp_path / "made")


@pytest.mark.parametrize("is_waited_for", [False, True])
def test_compilers_that_nobody_waits_for_leave_the_processor_to_others(
    is_waited_for: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compilers have the process's session, in which niceness counts, and a group, to kill them.

    Programs started by a compiler yield too, even if the compiler started first.
    """
    ran = tmp_path / "ran.py"
    ran.write_text(
        "import os, sys\n"
        "open(sys.argv[1] + '.started', 'w').close()\n"
        "sys.stdin.readline()\n"
        "print(os.getsid(0), os.getpgid(0), os.nice(0), file=open(sys.argv[1], 'w'))"
    )
    compiler = tmp_path / "compiler.py"
    compiler.write_text(
        "import os, subprocess, sys, time\n"
        f"run = subprocess.Popen([sys.executable, {str(ran)!r}, sys.argv[3]], stdin=-1)\n"
        f"while {not is_waited_for} and os.nice(0) == {os.nice(0)}: time.sleep(0.001)\n"
        "run.communicate(b'\\n')"
    )
    set_priority = os.setpriority

    def set_late(*arguments: int) -> None:
        while not (tmp_path / "made.started").exists():
            os.sched_yield()
        set_priority(*arguments)

    monkeypatch.setattr(os, "setpriority", set_late)

    def compile() -> None:
        if not is_waited_for:
            cache.give_way()
        cache.run([sys.executable, str(compiler)], compiler, tmp_path / "made")

    thread = threading.Thread(target=compile)
    thread.start()
    thread.join()
    session, group, niceness = map(int, (tmp_path / "made").read_text().split())
    assert session == os.getsid(0)
    assert group != os.getpgid(0)
    assert (niceness == os.nice(0)) == is_waited_for


def _usual(eps: float = 1e-6) -> Any:
    from bridge.ops.traced import traced
    from bridge.ops.usual_programs import usual_requests

    return usual_requests(traced(rms_norm.declaration, (True, True), eps), "float32")


def test_a_parameter_that_changes_is_asked_for_once() -> None:
    """The memory of a training run does not grow with the numbers of its steps."""
    usual = [request.key for request in _usual()]
    assert len(set(usual)) == len(usual)
    assert usual == [request.key for request in _usual(3e-5)]
    assert usual != [request.key for request in _usual(0.5)]  # a literal, for its own operations


@pytest.mark.long
def test_several_processes_and_threads_at_once(tmp_path: Path) -> None:
    environment = {**os.environ, "BRIDGE_CACHE_DIR": str(tmp_path), "BRIDGE_COMPILE": "now"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    assert [process.communicate(timeout=300)[0].split() for process in processes] == [["4"]] * 3
    # For the two passes of the op.
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".sha256"] * 2 + [".so"] * 2


def test_what_killed_processes_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIDGE_CACHE_DIR", str(tmp_path))
    old, new = tmp_path / "new-old", tmp_path / "new-new"
    for folder in (old, new):
        folder.mkdir()
        (folder / "program.cpp").touch()
    os.utime(old, (0, 0))

    def make(folder: Path) -> Path:
        made = folder / "made"
        made.touch()
        return made

    cache.cached(["any"], ".so", make)
    assert not old.exists()
    assert (new / "program.cpp").exists()


@pytest.mark.long
def test_a_process_that_ends_leaves_nothing_behind(tmp_path: Path) -> None:
    # A function registered after `bridge.generated` runs before its exit handler.
    code = "import atexit, time, bridge.generated\natexit.register(time.sleep, 0.3)\n"
    code += PROGRAM.partition("with warnings")[0] + (
        "soft_relu(torch.ones(9, 1000))\ntime.sleep(0.3)\n"
    )
    environment = {**os.environ, "BRIDGE_CACHE_DIR": str(tmp_path), "BRIDGE_COMPILE": "background"}
    while_it_has_a_folder = "while ls new-* >&2; do sleep 0.05; done; exit 1"
    for script in ("sleep 100", 'exec g++ "$@"', while_it_has_a_folder):
        environment["CXX"] = broken_compiler(tmp_path, script)
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")
    assert not list(tmp_path.glob("new-*"))


def test_a_worker_that_has_ended_starts_no_thread() -> None:
    """Torch's nodes, too, which the first call of an exit function may ask for."""
    worker = requests._Worker()
    worker.end()
    worker.ask(nodes._Nodes())
    assert worker.thread is None


@pytest.mark.long
def test_threads_that_call_while_programs_are_added() -> None:
    tensors = torch.randn(40, 300), torch.randn(300)
    expected = rms_norm(*tensors)
    stop, wrong = threading.Event(), []

    def call() -> None:
        while not stop.wait(0.001):  # otherwise the compilers would only share the processor
            if not torch.equal(rms_norm(*tensors), expected):
                wrong.append(1)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for op in SEVEN[:3]:
            op.compile(dtypes=["float32"])
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong


def test_a_forked_process_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the compiled programs, and its own thread to compile more."""
    code = PROGRAM + (
        "pid = os.fork()\n"
        "if not pid:\n"
        "    before = _native.generated_calls()\n"
        "    soft_relu(x.detach().to(torch.bfloat16)); assert bridge.wait()\n"
        "    soft_relu(x.detach().to(torch.bfloat16))\n"
        "    os._exit(0 if _native.generated_calls() == before + 1 else 1)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
    )
    environment = {**os.environ, "BRIDGE_COMPILE": "background", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, timeout=2 * SECONDS)
    assert done.returncode == 0


def test_a_call_asks_for_its_platform_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch asks at the first call on a platform, JAX when a call is lowered for one."""
    from bridge.ops import run_program

    asked: list[str] = []
    monkeypatch.setattr(run_program, "asked_for", lambda *arguments: asked.append(arguments[4:]))

    @bridge.op
    def shifted(x: bridge.Full):
        return x + bl.max(x) * 0.37

    for _ in range(3):
        shifted(torch.ones(3, 5))
    assert asked == [("cpu", "shifted")]
    import jax

    asked.clear()
    x = jax.ShapeDtypeStruct((3, 5), "float32")
    jax.jit(shifted.jax).trace(x).lower(lowering_platforms=("cuda",))
    assert asked == [("cuda", "shifted")]


def test_what_compile_refuses() -> None:
    with pytest.raises(ValueError, match=r"rms_norm\.compile: device is 'tpu', expected 'cpu'"):
        rms_norm.compile("tpu")
    with pytest.raises(ValueError, match="dtypes has 'int8', expected some of float16"):
        rms_norm.compile(dtypes=["int8"])
    with pytest.raises(TypeError, match="no static parameter 'epsilon', expected one of eps"):
        rms_norm.compile(epsilon=1e-3)


def test_the_flags_are_those_of_the_kernels() -> None:
    """Bits depend on them: they are the flags of cpp/CMakeLists.txt for its own files."""
    text = (Path(__file__).parents[2] / "cpp" / "CMakeLists.txt").read_text()
    for isa in ("x86-64-v4", "x86-64-v3"):
        for flag in compiler._flags(isa, "g++"):
            own = ("-std", "-fPIC", "-shared", "-DBRIDGE", "-w", "-fno-thread-jumps")
            assert flag in text or flag.startswith(own)


def test_a_constant_that_operations_are_made_for_makes_another_program() -> None:
    """Other constants are read from a call's words, and one machine code serves all of them."""

    @bridge.op
    def scaled(x: bridge.Full, *, by: float):
        return bl.exp(x) * by

    keys = [
        next(iter(usual_requests(traced(scaled.declaration, (True,), by), "float32"))).key
        for by in (0.3, 0.7, 0.0)
    ]
    assert keys[0] == keys[1] != keys[2]
