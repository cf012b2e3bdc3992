"""The sentence encoders of `python -m bridge demo` are right, and agree with each other."""

from __future__ import annotations

import copy
import importlib.util

import numpy as np
import pytest

from bridge.cli.main import main
from tools.demo import gpt, sentences, text, weights
from tools.demo.comparison import is_equal
from tools.demo.text import SYMBOLS

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec(weights.MODULE) is None, reason=f"{weights.PACKAGE} is not installed"
)


RATES = {framework: {"bridge": 2.0, "own": 1.0} for framework in ("torch", "jax")}


@pytest.fixture(scope="module")
def found():
    from tools.demo import encode

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode, "speed", lambda *_: RATES)  # takes seconds, and has its own test
        from tools.demo.main import encode as run

        return run()


@pytest.mark.parametrize("op", ["bias_gelu", "softmax", "bias_dropout_add"])
def test_bits_agree_with_bridge_and_only_with_bridge(found, op):
    of = found["agreement"][op]
    assert of["elements"] > 100_000
    assert of["differing"]["bridge"] == 0
    assert of["differing"]["own"] > 0


@pytest.fixture(scope="module")
def training():
    from tools.demo.train import train

    return train(steps=40)


@pytest.mark.long
def test_trainings_with_bridge_are_equal(training):
    ended = training["ended"]
    for kind in ("weights", "state"):
        assert ended["bridge"][kind]["differing"] == 0
        assert ended["bridge"][kind]["elements"] > 70_000
        assert ended["own"][kind]["differing"] > 0.9 * ended["own"][kind]["elements"]
    assert ended["bridge"]["hash"]["torch"] == ended["bridge"]["hash"]["jax"]
    assert ended["own"]["hash"]["torch"] != ended["own"]["hash"]["jax"]
    assert training["equal_losses"]["bridge"] == training["steps"]
    assert training["gap"]["own"]["largest"] > 1e-3
    assert is_equal(training)


@pytest.mark.parametrize(
    "plant",
    [
        lambda t: t["ended"]["bridge"]["weights"].update(differing=1),
        lambda t: t["ended"]["bridge"]["state"].update(differing=1),
        lambda t: t["equal_losses"].update(bridge=39),
        lambda t: t["agreement"]["attend"]["differing"].update(bridge=1),
    ],
)
def test_one_difference_is_a_difference(training, plant):
    broken = copy.deepcopy(training)
    plant(broken)
    assert not is_equal(broken)


def test_bits_of_the_trained_model_agree_with_bridge(training):
    agreement = training["agreement"]
    for op in gpt.OPS:
        assert agreement[op]["differing"]["bridge"] == 0, op
    for op in ("norm", "linear", "attend", "gate", "dropout_add"):
        assert agreement[op]["differing"]["own"] > 0, op


def test_training_learns(training):
    for curves in training["curves"].values():
        for losses in curves.values():
            assert losses[0] == pytest.approx(np.log(SYMBOLS), abs=0.05)
            assert losses[-5:].mean() < losses[0] - 1.0


def test_no_two_dropouts_of_a_training_draw_the_same():
    draws = [gpt.draw(step, site) for step in range(5) for site in range(2 * gpt.LAYERS)]
    assert len(set(draws)) == len(draws)


def test_the_text_is_english_in_the_model_s_vocabulary():
    characters = text.characters()
    assert characters.min() >= 0
    assert characters.max() < SYMBOLS
    assert len(characters) > 300_000
    piece = text.batches(2, 3, 8)
    assert piece.shape == (2, 3, 9)
    assert "statement" in "".join(chr(c + text.FIRST) for c in characters)


def test_both_frameworks_encode_alike(found):
    assert found["distance"]["bridge"]["largest"] == 0
    assert 0 < found["distance"]["own"]["largest"] < 2e-6
    assert found["same_neighbours"] == len(sentences.SENTENCES)


def test_neighbours_are_about_the_same_thing(found):
    assert found["same_subject"] >= 34
    np.testing.assert_allclose(np.diag(found["cosines"]), 1.0, atol=1e-5)
    port, boats = (
        next(i for i, text in enumerate(sentences.SENTENCES) if word in text)
        for word in ("Sailors", "fishing boats")
    )
    assert found["nearest"][port] == boats
    # The result of sentence-transformers 6.2 for the pair.
    assert found["cosine"][port] == pytest.approx(0.60796, abs=1e-5)


def test_padding_changes_nothing():
    from tools.demo.encode import as_array, encoders

    made = encoders(weights.load(), "cpu")
    short, long = "Prune the roses early.", sentences.SENTENCES[0] * 3
    for encoder in made.values():
        alone = as_array(encoder(weights.tokenize([short])))[0]
        padded = as_array(encoder(weights.tokenize([short, long])))[0]
        np.testing.assert_allclose(alone, padded, atol=2e-6)


def test_speed_is_in_sentences_per_second(hand_clock):
    from tools.demo.encode import speed

    class Encoder:
        def __call__(self, batch):
            import torch

            hand_clock.sleep(2e-3)
            return torch.zeros(1)

    made = {(f, ops): Encoder() for f in ("torch", "jax") for ops in ("bridge", "own")}
    rates = speed(made, weights.Batch(np.zeros((3, 4)), np.ones((3, 4))), 0.01)
    for framework in ("torch", "jax"):
        assert rates[framework]["bridge"] == pytest.approx(3 / 2e-3)


def test_demo_command_writes_the_report(found, training, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("tools.demo.main.encode", lambda device: found)
    monkeypatch.setattr("tools.demo.main.train", lambda device: training)
    page = tmp_path / "out" / "report.html"
    assert main(["demo", "--no-measurements", "--html", str(page)]) == 0
    out = capsys.readouterr().out
    assert str(page) in out.replace("\n", "")
    assert "Sailors hurried into port" in out
    assert "largest difference of the curves" in out
    html = page.read_text()
    assert html.count("<svg") == 3
    assert "<script" not in html
    assert "src='http" not in html
    assert 'src="http' not in html


def test_demo_fails_where_bits_differ(found, monkeypatch, tmp_path):
    broken = copy.deepcopy(found)
    broken["agreement"]["softmax"]["differing"]["bridge"] = 1
    monkeypatch.setattr("tools.demo.main.encode", lambda device: broken)
    page = tmp_path / "report.html"
    assert main(["demo", "--sentences-only", "--html", str(page)]) == 1
