"""The gain of `bridge.torch.huggingface.replace` on a small Llama, with and without compile."""

from __future__ import annotations

import importlib.util
import itertools
import sys
import types
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tools.bench.cases import HUGGINGFACE
from tools.bench.timing import Contender, interleave

BATCH, POSITIONS = 2, 128
WIDTHS = (256, 1024)  # columns of the hidden states
KINDS = ("norms", "mlps", "rotary", "loss")
FORMS = {"all": KINDS, **{kind: (kind,) for kind in KINDS}}
FORWARD, STEP = "forward", "forward+backward"


def rows(
    device: str,
    seconds: float,
    forms: tuple[str, ...] = tuple(FORMS),
    modes: tuple[bool, ...] = (False, True),
    widths: tuple[int, ...] = WIDTHS,
) -> Iterator[dict[str, Any]]:
    """Yields the timings of each replacement and of all together, paired with the original.

    Each model has its own copy of transformers' module, because the replacement of a rotary
    embedding affects all models of a module.
    """
    import torch

    from bridge.torch import huggingface

    # Each model, and the original, has two graphs: with gradients and without.
    torch.compiler.config.recompile_limit = 8 * len(FORMS) * len(widths)
    for width, compiled in itertools.product(widths, modes):
        sizes = _sizes(width)
        ids = torch.randint(3, sizes["vocab_size"], (BATCH, POSITIONS)).to(device)
        original = _model("original", device, compiled, sizes)
        for form in forms:
            wanted = {kind: kind in FORMS[form] for kind in (*KINDS, "activations")}
            replace = lambda model, wanted=wanted: huggingface.replace(model, **wanted)  # noqa: E731
            ours = _model(form, device, compiled, sizes, replace)
            for what, run in ((FORWARD, _forward), (STEP, _step)):
                yield _row(what, (form, width, compiled), (ours, original), run, ids, seconds)


def _sizes(width: int) -> dict[str, int]:
    return {
        "vocab_size": 1024,
        "hidden_size": width,
        "intermediate_size": width * 43 // 16,
        "num_hidden_layers": 2,
        "num_attention_heads": width // 32,
        "num_key_value_heads": width // 64,
    }


def _model(
    name: str,
    device: str,
    compiled: bool,
    sizes: dict[str, int],
    change: Callable[[Any], Any] = lambda model: None,
) -> tuple[Any, Any]:
    """Returns a changed Llama with its own copy of the modeling code, and its loss function."""
    import torch
    from transformers.models.llama import modeling_llama

    home = f"{modeling_llama.__name__}_bench_{name}_{sizes['hidden_size']}_{int(compiled)}"
    if home not in sys.modules:
        spec: Any = importlib.util.spec_from_file_location(home, modeling_llama.__file__)
        sys.modules[home] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[home])
    torch.manual_seed(0)
    model = sys.modules[home].LlamaForCausalLM(modeling_llama.LlamaConfig(**sizes)).to(device)
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
    case: tuple[str, int, bool],
    models: tuple[Any, Any],
    run: Callable[[Any, Any], Any],
    ids: Any,
    seconds: float,
) -> dict[str, Any]:
    import bridge
    from tools.bench.in_torch import wait_on

    form, width, compiled = case
    for model in models:
        run(model, ids)
    bridge.wait()  # until programs that the first call asked for are compiled
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
        "width": width,
        "shape": list(ids.shape),
        "memory": "new",
        "part": HUGGINGFACE,
        "label": f"{what}, {form}, {width} wide{', compiled' if compiled else ''}",
        "bytes": 0.0,
        "timings": {name: timing.to_json() for name, timing in timings.items()},
        "gigabytes_per_second": {},
        "speedup": {peer: timings[peer].median / timings["bridge"].median},
    }
