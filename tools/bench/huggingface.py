"""The gain of `bridge.torch.huggingface.replace` on a small Llama, with and without compile."""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tools.bench.cases import HUGGINGFACE
from tools.bench.timing import Contender, interleave

BATCH, POSITIONS = 2, 128
SIZES = {
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
KINDS = ("norms", "mlps", "rotary", "loss")
FORMS = {"all": KINDS, **{kind: (kind,) for kind in KINDS}}
FORWARD, STEP = "forward", "forward+backward"


def rows(
    device: str,
    seconds: float,
    forms: tuple[str, ...] = tuple(FORMS),
    modes: tuple[bool, ...] = (False, True),
) -> Iterator[dict[str, Any]]:
    """Yields the timings of each replacement and of all together, paired with the original.

    Each model has its own copy of transformers' module, because the replacement of a rotary
    embedding affects all models of a module.
    """
    import torch

    from bridge.torch import huggingface

    ids = torch.randint(3, SIZES["vocab_size"], (BATCH, POSITIONS)).to(device)
    # Each model, and the original, has two graphs: with gradients and without.
    torch.compiler.config.recompile_limit = 8 * len(FORMS)
    for compiled in modes:
        original = _model("original", device, compiled)
        for form in forms:
            wanted = {kind: kind in FORMS[form] for kind in (*KINDS, "activations")}
            name = f"{form}{'_compiled' if compiled else ''}"
            replace = lambda model, wanted=wanted: huggingface.replace(model, **wanted)  # noqa: E731
            ours = _model(name, device, compiled, replace)
            for what, run in ((FORWARD, _forward), (STEP, _step)):
                yield _row(what, form, compiled, (ours, original), run, ids, seconds)


def _model(
    name: str, device: str, compiled: bool, change: Callable[[Any], Any] = lambda model: None
) -> tuple[Any, Any]:
    """Returns a changed Llama with its own copy of the modeling code, and its loss function."""
    import torch
    from transformers.models.llama import modeling_llama

    home = f"{modeling_llama.__name__}_bench_{name}_{int(compiled)}"
    if home not in sys.modules:
        spec: Any = importlib.util.spec_from_file_location(home, modeling_llama.__file__)
        sys.modules[home] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[home])
    torch.manual_seed(0)
    model = sys.modules[home].LlamaForCausalLM(modeling_llama.LlamaConfig(**SIZES)).to(device)
    change(model)

    def loss(ids: Any) -> Any:
        return model(input_ids=ids, labels=ids, use_cache=False).loss

    if not compiled:
        return model, loss
    # torch.compile counts the graphs of a code object, and stops compiling at a limit.
    code, closure = loss.__code__.replace(co_name=f"loss_of_{name}"), loss.__closure__
    own = types.FunctionType(code, loss.__globals__, closure=closure)
    return model, torch.compile(own, fullgraph=True)


def _forward(given: tuple[Any, Any], ids: Any) -> Any:
    import torch

    with torch.no_grad():
        return given[1](ids)


def _step(given: tuple[Any, Any], ids: Any) -> Any:
    model, loss_of = given
    model.zero_grad(set_to_none=True)
    loss = loss_of(ids)
    loss.backward()
    return loss


def _row(
    what: str,
    form: str,
    compiled: bool,
    models: tuple[Any, Any],
    run: Callable[[Any, Any], Any],
    ids: Any,
    seconds: float,
) -> dict[str, Any]:
    from tools.bench.in_torch import wait_on

    peer, wait = "compile" if compiled else "eager", wait_on(ids.device.type)
    contenders = [
        Contender(name, partial(run, model, ids), wait)
        for name, model in zip(("bridge", peer), models, strict=True)
    ]
    timings = interleave(contenders, 3 * seconds)
    return {
        "op": HUGGINGFACE,
        "framework": "torch",
        "what": what,
        "dtype": "float32",
        "form": form,
        "shape": list(ids.shape),
        "memory": "new",
        "part": HUGGINGFACE,
        "label": f"{what}, {form}{', compiled' if compiled else ''}",
        "bytes": 0.0,
        "timings": {name: timing.to_json() for name, timing in timings.items()},
        "gigabytes_per_second": {},
        "speedup": {peer: timings[peer].median / timings["bridge"].median},
    }
