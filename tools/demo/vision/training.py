"""Trains each model in both frameworks on the same images, and counts differing numbers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from flax import nnx
from torch import nn

import bridge.jax as bj
import bridge.jax.nnx
import bridge.jax.optim
import bridge.torch
import bridge.torch.optim
from tools.demo.vision import jax_models, torch_models
from tools.demo.vision.carried import (
    Arrays,
    as_tensor,
    carried,
    count_differing,
    differing,
    load,
    numbers_of,
)

STEPS, BATCH, SIDE = 20, 4, 32
LEARNING_RATE, MOMENTUM = 0.05, 0.9
MODELS = {
    "ResNet-18": "ResNet18",
    "ConvNeXt-tiny": "ConvNeXtTiny",
    "ViT": "ViT",
    "U-Net": "UNet",
}


class Data(NamedTuple):
    """Images `[n, h, w, 3]` and labels `[n]`, for a U-Net `[n, h, w]`."""

    images: np.ndarray
    labels: np.ndarray


def batches(name: str, steps: int, batch: int = BATCH, side: int = SIDE) -> list[Data]:
    """Returns random images; the label is the number of a band of their brightness."""
    generator = np.random.default_rng(0)
    found = []
    for _ in range(steps + 1):
        images = generator.normal(size=(batch, side, side, 3)).astype(np.float32)
        bright = images.sum(-1) if name == "U-Net" else images.mean((1, 2, 3)) * side
        labels = np.clip(np.floor(bright * 2 + torch_models.CLASSES / 2), 0, 9)
        found.append(Data(images, labels.astype(np.int32)))
    return found


def pair(name: str, seed: int = 0) -> tuple[nn.Module, nnx.Module]:
    """Returns the original and its port with the same weights, before `replace`."""
    torch.manual_seed(seed)
    original: nn.Module = getattr(torch_models, MODELS[name])()
    # Abstract: the initial numbers of Flax would be thrown away.
    make: Any = getattr(jax_models, MODELS[name])
    port: nnx.Module = nnx.eval_shape(lambda: make(rngs=nnx.Rngs(seed)))
    load(port, carried(original, original.state_dict()))
    return original, port


class TorchTraining:
    """A model of torch.nn, its loss and its optimizer."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.loss = model, nn.CrossEntropyLoss()
        self.replaced = bridge.torch.replace(model)
        bridge.torch.replace(self.loss)
        self.optimizer = bridge.torch.optim.SGD(
            model.parameters(), LEARNING_RATE, momentum=MOMENTUM
        )

    def step(self, data: Data) -> np.ndarray:
        """Makes one step and returns the loss before it."""
        self.optimizer.zero_grad()
        loss = self.loss(self.model(as_tensor(data.images)), torch.from_numpy(data.labels))
        loss.backward()
        self.optimizer.step()
        return loss.detach().numpy()  # type: ignore[no-any-return]

    def outputs(self, data: Data) -> np.ndarray:
        """Returns the logits, classes last, in evaluation."""
        self.model.eval()
        with torch.no_grad():
            y = self.model(as_tensor(data.images))
        self.model.train()
        return y.movedim(1, -1).numpy()  # type: ignore[no-any-return]

    def ended(self) -> dict[str, Arrays]:
        """Returns weights, running statistics and momenta."""
        own = dict(self.model.named_parameters())
        momenta = {name: self.optimizer.state[p]["momentum_buffer"] for name, p in own.items()}
        groups: dict[str, Any] = {
            "weights": own,
            "statistics": dict(self.model.named_buffers()),
            "momenta": momenta,
        }
        return {kind: carried(self.model, values) for kind, values in groups.items()}


class JaxTraining:
    """A model of NNX, with a compiled step."""

    def __init__(self, model: nnx.Module) -> None:
        self.model = model
        self.replaced = bridge.jax.nnx.replace(model, unbiased=True)
        self.optimizer = bridge.jax.optim.sgd(LEARNING_RATE, momentum=MOMENTUM)
        split: Any = nnx.split(model, nnx.Param, ...)
        self.definition: Any = split[0]
        self.weights: Any = split[1]
        self.others: Any = split[2]
        self.state = jax.jit(self.optimizer.init)(self.weights)
        self._step = jax.jit(self._updated)
        self._outputs = jax.jit(self._evaluated)

    def _updated(self, weights: Any, others: Any, state: Any, images: Any, labels: Any) -> Any:
        def loss(weights: Any) -> Any:
            model = nnx.merge(self.definition, weights, others, copy=True)
            model.train()
            value = bj.cross_entropy(model(images), labels)
            split: Any = nnx.split(model, nnx.Param, ...)
            return value, split[2]

        (value, others), gradients = jax.value_and_grad(loss, has_aux=True)(weights)
        weights, state = self.optimizer.step(gradients, state, weights)
        return weights, others, state, value

    def _evaluated(self, weights: Any, others: Any, images: Any) -> Any:
        model = nnx.merge(self.definition, weights, others, copy=True)
        model.eval()
        return model(images)

    def step(self, data: Data) -> np.ndarray:
        """Makes one step and returns the loss before it."""
        given = self.weights, self.others, self.state, *map(jnp.asarray, data)
        self.weights, self.others, self.state, value = self._step(*given)
        return np.asarray(value)

    def outputs(self, data: Data) -> np.ndarray:
        """Returns the logits in evaluation."""
        return np.asarray(self._outputs(self.weights, self.others, jnp.asarray(data.images)))

    def ended(self) -> dict[str, Arrays]:
        """Returns weights, running statistics and momenta."""
        return {
            "weights": numbers_of(self.weights),
            "statistics": numbers_of(nnx.filter_state(self.others, nnx.BatchStat)),
            "momenta": numbers_of(self.state.trace),
        }


def train(
    name: str, steps: int = STEPS, following: Callable[[str, str, int], None] | None = None
) -> dict[str, Any]:
    """Trains one model in both frameworks and compares everything at the end.

    Args:
      following: called with the model's name, the framework and the step.

    Returns:
      For each kind of numbers, how many there are and how many differ; equal losses; both reports
      of `replace`; the seconds of each framework.
    """
    original, port = pair(name)
    data = batches(name, steps)
    seconds: dict[str, float] = {}
    losses: dict[str, list[Any]] = {}
    outputs: dict[str, list[Any]] = {}
    ended: dict[str, dict[str, Arrays]] = {}
    replaced: dict[str, Any] = {}
    makes: dict[str, Any] = {
        "torch": lambda: TorchTraining(original),
        "jax": lambda: JaxTraining(port),
    }
    for framework, make in makes.items():
        training = make()
        start = time.perf_counter()
        outputs[framework] = [training.outputs(data[-1])]
        losses[framework] = []
        for step in range(steps):
            losses[framework].append(training.step(data[step]))
            if following is not None:
                following(name, framework, step)
        outputs[framework].append(training.outputs(data[-1]))
        ended[framework], replaced[framework] = training.ended(), training.replaced
        seconds[framework] = time.perf_counter() - start
    kinds = {
        kind: {
            "elements": sum(array.size for array in own.values()),
            "differing": differing(own, ended["jax"][kind]),
        }
        for kind, own in ended["torch"].items()
    }
    own, others = (np.stack(outputs[framework]) for framework in ("torch", "jax"))
    kinds["outputs"] = {"elements": own.size, "differing": count_differing(own, others)}
    curves = {framework: np.array(each) for framework, each in losses.items()}
    return {
        "steps": steps,
        "kinds": kinds,
        "equal_losses": int(np.count_nonzero(curves["torch"] == curves["jax"])),
        "losses": curves,
        "replaced": replaced,
        "seconds": seconds,
    }
