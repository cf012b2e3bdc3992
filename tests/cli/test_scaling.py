"""`python -m bridge scaling`: the model against hand-worked values, and the command itself."""

from __future__ import annotations

import itertools
import json
import math
import signal
from typing import Any

import pytest

from bridge.cli.errors import CommandError
from bridge.cli.main import main
from tools.scaling import algorithms, command, measure
from tools.scaling.algorithms import ALGORITHMS, fastest, hierarchical, of_link
from tools.scaling.contrastive import Contrastive
from tools.scaling.fit import Fit, fit, validation
from tools.scaling.links import ETHERNET, H100, INFINIBAND, LINKS, NVLINK, Link
from tools.scaling.quantities import amount, duration
from tools.scaling.sequence import Layers

LINK = Link("by hand", alpha=1.0, bandwidth=0.5, reach=None, source="")  # β = 2
INSIDE = Link("inside", alpha=0.25, bandwidth=4.0, reach=4, source="")  # β = 1/4
POWERS = [2**k for k in range(17)]


@pytest.mark.parametrize(
    ("name", "n", "part", "seconds"),
    [
        ("ring", 2, 10, 1 + 20),
        ("ring", 4, 10, 3 * (1 + 20)),
        ("recursive doubling", 4, 10, 2 + 3 * 20),
        ("recursive doubling", 5, 10, 3 + 4 * 20),  # Bruck's: ⌈log₂ 5⌉ = 3
        ("binomial tree", 4, 10, (2 + 3 * 20) + 2 * (1 + 4 * 20)),  # gather, then broadcast
    ],
)
def test_hand_worked(name, n, part, seconds):
    assert ALGORITHMS[name](n, part, LINK) == pytest.approx(seconds)


def test_hierarchical_by_hand():
    # 4 nodes of 4: log₂ 4 = 2 steps between them bring 3 parts; then a ring of 4 parts each.
    expected = (2 * 1 + 3 * 10 * 2) + 3 * (0.25 + 40 * 0.25)
    assert hierarchical(16, 10, LINK, INSIDE, 4) == pytest.approx(expected)
    assert hierarchical(4, 10, LINK, INSIDE, 4) == algorithms.ring(4, 10, INSIDE)
    with pytest.raises(ValueError, match="10 devices do not fill nodes of 4"):
        hierarchical(10, 10, LINK, INSIDE, 4)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_one_device_costs_nothing(name):
    assert ALGORITHMS[name](1, 1e9, LINK) == 0


@pytest.mark.parametrize("n", [2, 3, 7, 64, 65_536])
def test_bandwidth_term_is_the_least_possible(n):
    whole = 1e6
    for name in ("ring", "recursive doubling"):
        free = Link("", 0.0, LINK.bandwidth, None, "")
        assert ALGORITHMS[name](n, whole / n, free) == pytest.approx((n - 1) / n * whole * 2)


@pytest.mark.parametrize("n", POWERS)
def test_latency_terms(n):
    steps = n.bit_length() - 1  # log₂ of a power of two
    assert algorithms.ring(n, 0, LINK) == n - 1
    assert algorithms.recursive_doubling(n, 0, LINK) == steps
    assert algorithms.binomial_tree(n, 0, LINK) == 2 * steps


@pytest.mark.parametrize("link", LINKS, ids=lambda link: link.name)
def test_more_of_anything_takes_longer(link):
    for time_of in of_link(link).values():
        by_count = [time_of(n, 1e5, link) for n in POWERS]
        assert all(a < b for a, b in itertools.pairwise(by_count))
        for n in (8, 512, 65_536):
            assert time_of(n, 1e5, link) < time_of(n, 2e5, link) < 2 * time_of(n, 1e5, link)


def test_the_fastest_is_the_least_and_a_node_needs_no_network():
    for link in LINKS:
        for n in (2, 8, 64, 65_536):
            name, seconds = fastest(n, 1e5, link)
            used = NVLINK if n <= 8 else link
            assert seconds == min(time_of(n, 1e5, used) for time_of in of_link(used).values())
            assert seconds == of_link(used)[name](n, 1e5, used)


def test_what_links_are_taken_to_be():
    """Links are in bytes and seconds: an error of 8 or of 1000 would be seen here."""
    assert NVLINK.bandwidth == 900e9 / 2
    assert INFINIBAND.bandwidth == 400e9 / 8
    assert ETHERNET.bandwidth == 100e9 / 8
    for link in LINKS:
        assert 1e-6 < link.alpha < 1e-4
        assert link.beta == pytest.approx(1 / link.bandwidth)
        assert link.source


def test_contrastive_bytes_are_those_of_the_arrays():
    np = pytest.importorskip("numpy")
    task, ranks = Contrastive(batch=6, width=5, itemsize=2), 4
    text = np.zeros((6, 5), np.float16)
    everyone = np.zeros((ranks * 6, 5), np.float16)
    assert task.part == text.nbytes
    assert task.gathered_bytes(ranks) == 2 * everyone.nbytes
    rows = (text @ everyone.T).astype(np.float32)
    assert task.logits_bytes(ranks, "own rows") == 2 * rows.nbytes
    whole = (everyone @ everyone.T).astype(np.float32)
    assert task.logits_bytes(ranks, "whole loss") == whole.nbytes
    # 2·rows·columns·width multiplications and additions forward, twice as many backward.
    assert task.flops(ranks, "own rows") == 3 * 2 * (2 * 6 * 24 * 5)
    assert task.flops(ranks, "whole loss") == 3 * 2 * (24 * 24 * 5)


def test_what_each_rule_sends():
    task = Contrastive()
    for rule, backward in (("sum", True), ("mean", True), ("local", False)):
        assert task.sent_bytes(1, rule) == (0, 0)
        forward, back = task.sent_bytes(64, rule)
        assert forward == 2 * 63 * task.part
        assert back == (forward if backward else 0)


def test_the_rule_to_choose():
    """For few ranks the whole loss is cheap and sends nothing back; for many neither is true."""
    task = Contrastive()
    assert task.chosen(8, INFINIBAND)["rule"] == "local"
    assert task.chosen(4096, INFINIBAND)["rule"] == "sum"
    rows = {row["rule"]: row for row in task.choices(4096, INFINIBAND)}
    assert not rows["local"]["fits"]
    seconds = {rule: row["seconds"]["total"] for rule, row in rows.items()}
    assert seconds["sum"] < seconds["local"] < seconds["mean"]
    assert Contrastive(batch=1 << 20).chosen(65_536, INFINIBAND) is None


def test_layers_by_hand():
    layers = Layers(tokens=16, width=4, layers=3, batch=2)
    assert layers.whole == 16 * 2 * 4 * 2
    assert layers.kept(1) == 34 * 128 == layers.kept(1, split=False)
    assert layers.kept(8) == 34 * 128 / 8
    assert layers.kept(8, split=False) == 13 * 128
    flops = 72 * 2 * 16 * 4**2 * (1 + 16 / 24)
    assert layers.arithmetic(4) == pytest.approx(flops / 4 / H100.flops)
    once = algorithms.ring(4, layers.whole / 4, NVLINK)
    assert layers.communication(4, NVLINK, "ring") == pytest.approx(10 * once)
    assert layers.communication(1, NVLINK) == 0


def test_exchanges_outgrow_arithmetic():
    layers = Layers()
    for link in LINKS:
        count = layers.break_even(link, tuple(POWERS))
        assert layers.communication(count, link) > layers.arithmetic(count)
        assert layers.communication(count // 2, link) <= layers.arithmetic(count // 2)
    assert layers.break_even(NVLINK, (1, 2)) is None


TRUTH = Fit(overhead=2e-5, copy=1e-10, alpha=1e-4, beta=1e-9, cores=2)


def points(truth: Fit, factor: float = 1.0) -> list[dict[str, Any]]:
    return [
        {
            "processes": n,
            "bytes": size,
            "median": truth.predict(n, size) * factor ** size.bit_length(),
        }
        for n in (1, 2, 3, 4)
        for size in (64, 4096, 1 << 17, 1 << 23)
    ]


def test_the_fit_finds_what_made_the_points():
    found = fit(points(TRUTH), cores=2)
    for name in ("overhead", "copy", "alpha", "beta"):
        assert getattr(found, name) == pytest.approx(getattr(TRUTH, name), rel=1e-6)
    assert max(map(abs, found.errors(points(TRUTH)))) < 1e-9
    for check in validation(points(TRUTH), cores=2):
        exact = "s = 1" not in check["what"]
        assert (check["worst"] < 1e-6) == exact


def test_coefficients_are_not_negative_and_errors_are_told():
    crooked = points(TRUTH, factor=1.2)
    found = fit(crooked, cores=2)
    assert min(found.overhead, found.copy, found.alpha, found.beta) >= 0
    errors = found.errors(crooked)
    for point, error in zip(crooked, errors, strict=True):
        predicted = found.predict(point["processes"], point["bytes"])
        assert predicted == pytest.approx(point["median"] * (1 + error))
    assert max(map(abs, errors)) > 0.01
    with pytest.raises(ValueError, match="3 points, expected at least 4"):
        fit(crooked[:3], cores=2)


def test_processes_that_share_cores_take_turns():
    assert TRUTH.predict(4, 0) - TRUTH.overhead == pytest.approx(3 * 2 * TRUTH.alpha)
    own = Fit(TRUTH.overhead, TRUTH.copy, TRUTH.alpha, TRUTH.beta, cores=None)
    assert own.predict(4, 0) - own.overhead == pytest.approx(3 * own.alpha)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0"), (3.4e-6, "3.40 µs"), (9.996e-4, "1.00 ms"), (0.25, "250 ms"), (1234, "1,234 s")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0"), (64, "64.0 B"), (1 << 17, "128 KiB"), (3 << 29, "1.50 GiB"), (1 << 48, "256 TiB")],
)
def test_amounts(count, text):
    assert amount(count) == text


@pytest.mark.long
@pytest.mark.timeout(180)
def test_the_command_measures_two_processes(tmp_path, capsys, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(command, "QUICK_SIZES", (64, 1 << 16))
    report_file, plot = tmp_path / "scaling.json", tmp_path / "scaling.svg"
    arguments = ["--quick", "--processes", "2", "--batch", "64", "--width", "32"]
    arguments += ["--json", str(report_file)]
    assert main(["scaling", *arguments, "--plot", str(plot)]) == 0
    report = json.loads(report_file.read_text())
    part = 64 * 32 * 2
    transport = [row for row in report["measured"] if row["part"] == "transport"]
    assert {(row["collective"], row["processes"], row["bytes"]) for row in transport} == {
        (collective, n, size)
        for collective in ("all-gather", "reduce-scatter")
        for n in (1, 2)
        for size in (64, part, 1 << 16)
    }
    for row in report["measured"]:
        assert 0 < row["low"] <= row["median"] <= row["high"] < math.inf
    sent = {
        (row["pass"], row["grad"]): row["sent_bytes"]
        for row in report["measured"]
        if row["part"] == "rule"
    }
    if None not in sent.values():
        assert part <= sent["forward", "sum"] < 1.2 * part
        assert sent["backward", "local"] == 0
        assert sent["backward", "sum"] >= part
        assert sent["backward", "mean"] >= part
    assert report["fits"]["all-gather"]["points"] == 6
    assert {row["ranks"] for row in report["exchanges"]["rows"]} == set(command.COUNTS)
    assert max(command.COUNTS) == 65_536
    assert "<svg" in plot.read_text()
    out = capsys.readouterr().out
    for words in ("Measured: ", "Fitted: ", "Modelled: ", "[batch, tokens, width], tiled"):
        assert words in out

    # The same file models another task without measuring.
    again = tmp_path / "again.json"
    arguments = ["--from", str(report_file), "--batch", "256", "--json", str(again)]
    assert main(["scaling", *arguments]) == 0
    other = json.loads(again.read_text())
    assert other["measured"] == report["measured"]
    assert other["fits"] == report["fits"]
    assert other["contrastive"]["batch"] == 256


def plan(**changes: Any) -> measure.Plan:
    values = {"sizes": (64,), "rule_bytes": 64, "rule_rows": 1, "seconds": 0.01, "rounds": 2}
    return measure.Plan(**{"processes": (2,), "patience": 60.0, **values, **changes})


@pytest.fixture
def started(monkeypatch):
    """Returns the processes that a measurement starts."""
    found = []
    start = measure._start

    def remembering(*arguments: Any) -> Any:
        found.append(start(*arguments))
        return found[-1]

    monkeypatch.setattr(measure, "_start", remembering)
    return found


@pytest.mark.timeout(120)
def test_silent_processes_are_ended(tmp_path, monkeypatch, started):
    (tmp_path / "torch.py").write_text("import time; time.sleep(1000)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(measure, "START_SECONDS", 0.0)
    with pytest.raises(CommandError, match=r"no report came from 2 Gloo processes for 0\.2 s"):
        measure.measure(plan(patience=0.2), lambda _: None)
    # By force: the command does not wait for them to end by themselves.
    assert [process.poll() for process in started] == [-signal.SIGKILL] * 2


@pytest.mark.timeout(120)
def test_a_failing_process_is_named_and_the_others_ended(tmp_path, monkeypatch, started):
    (tmp_path / "torch.py").write_text("raise RuntimeError('a torch that does not start')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    words = (
        r"rank \d of 2 .* exit status 1; rank \d said: RuntimeError: a torch that does not start"
    )
    with pytest.raises(CommandError, match=words):
        measure.measure(plan(), lambda _: None)
    assert all(process.poll() is not None for process in started)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--processes", "1"], "--processes is 1, expected 2 to 16"),
        (["--processes", "99"], "--processes is 99, expected 2 to 16"),
        (["--batch", "0"], "--batch is 0, expected more than 0"),
        (["--tokens", "-5"], "--tokens is -5, expected more than 0"),
        (["--patience", "0"], "--patience is 0.0, expected more than 0"),
        (["--patience", "nan"], "--patience is nan, expected more than 0"),
        (["--patience", "inf"], "--patience is inf, expected more than 0 and at most"),
        (["--layers", "9" * 400], f"--layers is {'9' * 400}, expected more than 0 and at most"),
        (
            ["--batch", "2000000000"],
            "--batch 2000000000 of --width 512 is 2,048,000,000,000 bytes on a rank, expected at",
        ),
        (["--plot", "plot.txt"], "--plot plot.txt: no picture format, expected ."),
        (["--json", "/dev/null/x"], "--json /dev/null/x: "),
        (["--from", "no-such-file.json"], "--from no-such-file.json: "),
    ],
)
def test_bad_arguments(arguments, words, capsys):
    assert main(["scaling", *arguments]) == 2
    assert f"bridge scaling: {words}" in capsys.readouterr().err


def test_a_file_of_another_command_is_refused(tmp_path, capsys):
    file = tmp_path / "bench.json"
    for text in ('{"command": "bench"}', "[]", "no JSON"):
        file.write_text(text)
        assert main(["scaling", "--from", str(file)]) == 2
        assert "bridge scaling: --from" in capsys.readouterr().err
