"""Losses of preferences: a number for each pair of a chosen and a rejected answer.

Sources: DPO, arXiv:2305.18290, with label smoothing from Mitchell, "A note on DPO with noisy
preferences & relationship to IPO" (2023); IPO, arXiv:2310.12036; SimPO, arXiv:2405.14734; ORPO,
arXiv:2403.07691; KTO, arXiv:2402.01306; CPO, arXiv:2401.08417.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bridge import lang as bl
from bridge.catalogue import checks
from bridge.catalogue.declaration import declared, named, shape_of
from bridge.ops.arrays import Arrays
from bridge.ops.scalars import LARGEST_FLOAT32, LEAST_FLOAT32

NAME = "preference_loss"
KINDS = ("dpo", "ipo", "simpo", "orpo", "kto", "cpo")
_LOGISTIC = ("dpo", "simpo", "cpo")  # −log σ of a difference
_WITHOUT_REFERENCE = ("simpo", "orpo", "cpo")
_WITH_NLL = ("orpo", "cpo")  # whose papers add the negative log-likelihood of the chosen answer

_size = checks.number(
    f"a number from 0 to {LARGEST_FLOAT32:.1e}", lambda value: 0 <= value <= LARGEST_FLOAT32
)
_finite = checks.number("a finite number of float32", lambda value: abs(value) <= LARGEST_FLOAT32)
_CHECKS = {
    "kind": checks.word(KINDS),
    "beta": checks.number(
        f"a number from {LEAST_FLOAT32:.1e} to {LARGEST_FLOAT32:.1e}",
        lambda value: LEAST_FLOAT32 <= value <= LARGEST_FLOAT32,
    ),
    "label_smoothing": checks.number("a number from 0 to 1", lambda value: 0 <= value <= 1),
    "margin": _finite,
    "nll_weight": checks.optional(_size),
    "reduction": checks.word(("mean", "sum", "none")),
}


# Beta, label smoothing, margin, the weight of the negative log-likelihood, and KTO's weights of
# desirable and of undesirable answers.
Numbers = tuple[float, float, float, float, float, float]
_DEFAULT: Numbers = (0.1, 0.0, 0.0, 0.0, 1.0, 1.0)


def _log_of_rest(x: Any) -> Any:
    """log(1 − exp(x)) for x < 0: the logarithm of the probability of anything else."""
    is_large = x > -0.6931471805599453  # exp(x) is above 1/2
    # Each branch reads numbers at which its derivative is finite.
    small = bl.log1p(-bl.exp(bl.where(is_large, -1.0, x)))
    return bl.where(is_large, bl.log(-bl.expm1(bl.where(is_large, x, -0.5))), small)


def _losses(
    chosen: Any,
    rejected: Any,
    ref_chosen: Any,
    ref_rejected: Any,
    nll: Any,
    baseline: Any,
    desirable: Any,
    kind: str,
    numbers: Numbers,
) -> Any:
    beta, smoothing, margin, nll_weight, good, bad = numbers
    c = chosen if ref_chosen is None else chosen - ref_chosen
    r = rejected if ref_rejected is None else rejected - ref_rejected
    if kind == "kto":
        kl = 0.0 if baseline is None else bl.stop_gradient(baseline)
        of_chosen = good * bl.sigmoid(beta * (kl - c))  # 1 − σ(x) = σ(−x)
        if rejected is None:
            return bl.where(desirable, of_chosen, bad * bl.sigmoid(beta * (c - kl)))
        loss = of_chosen + bad * bl.sigmoid(beta * (r - kl))
    elif kind == "ipo":
        off = (c - r) - 1.0 / (2.0 * beta)
        loss = off * off
    elif kind == "orpo":
        loss = beta * bl.softplus((r - _log_of_rest(r)) - (c - _log_of_rest(c)))
    else:
        away = beta * (c - r) - margin
        loss = bl.softplus(-away)
        if smoothing:
            loss = (1.0 - smoothing) * loss + smoothing * bl.softplus(away)
    if nll_weight:
        loss = loss + nll_weight * (-chosen if nll is None else nll)
    return loss


@declared()
@named(NAME)
def pair_losses(
    chosen: bl.Full,
    rejected: bl.Full | None = None,
    ref_chosen: bl.Full | None = None,
    ref_rejected: bl.Full | None = None,
    nll: bl.Full | None = None,
    baseline: bl.Table | None = None,
    desirable: bl.Mask | None = None,
    *,
    kind: str = "dpo",
    numbers: Numbers = _DEFAULT,
):
    return _losses(
        chosen, rejected, ref_chosen, ref_rejected, nll, baseline, desirable, kind, numbers
    )


@declared()
@named(NAME)
def reduced_losses(
    chosen: bl.Full,
    rejected: bl.Full | None = None,
    ref_chosen: bl.Full | None = None,
    ref_rejected: bl.Full | None = None,
    nll: bl.Full | None = None,
    baseline: bl.Table | None = None,
    desirable: bl.Mask | None = None,
    *,
    kind: str = "dpo",
    numbers: Numbers = _DEFAULT,
    reduction: str = "mean",
):
    total = bl.sum(
        _losses(chosen, rejected, ref_chosen, ref_rejected, nll, baseline, desirable, kind, numbers)
    )
    total = total + 0.0  # turns -0.0, the sum of no pairs, into +0.0
    return total if reduction == "sum" else total / bl.maximum(bl.columns() * 1.0, 1.0)


class PreferenceLoss:
    """`preference_loss` in one framework; `flat` removes all dimensions of an array but one."""

    def __init__(self, arrays: Arrays, flat: Callable[[Any], Any]) -> None:
        self._arrays, self._flat = arrays, flat
        self._pairs, self._reduced = arrays.entry(pair_losses), arrays.entry(reduced_losses)

    def run(
        self,
        chosen: Any,
        rejected: Any,
        ref_chosen: Any,
        ref_rejected: Any,
        nll: Any,
        baseline: Any,
        desirable: Any,
        weights: Any,
        **options: Any,
    ) -> Any:
        """Returns the losses of pairs, or their reduction.

        Raises:
          TypeError, ValueError: an argument is not allowed.
        """
        known = self._arrays.known
        found = {
            name: check(NAME, name, known(NAME, name, options[name]))
            for name, check in _CHECKS.items()
        }
        kind, reduction = found["kind"], found["reduction"]
        of_nll = found["nll_weight"]
        of_nll = float(kind in _WITH_NLL) if of_nll is None else of_nll
        if not isinstance(weights, tuple | list) or len(weights) != 2:
            raise ValueError(f"{NAME}: weights is {weights!r}, expected two numbers")
        good, bad = (_size(NAME, "weights", known(NAME, "weights", each)) for each in weights)
        numbers = found["beta"], found["label_smoothing"], found["margin"], of_nll, good, bad
        *floating, baseline = self._arrays.checked(
            NAME,
            1,
            chosen=chosen,
            rejected=rejected,
            ref_chosen=ref_chosen,
            ref_rejected=ref_rejected,
            nll=nll,
            baseline=baseline,
        )
        operands = (*floating, baseline, desirable)
        _check_kind(kind, numbers, operands)
        _check_shapes(operands)
        if reduction == "none":
            return self._pairs.run(operands, None, kind, numbers)
        flat = [x if x is None or not shape_of(x) else self._flat(x) for x in operands]
        return self._reduced.run(tuple(flat), None, kind, numbers, reduction)


def _check_kind(kind: str, numbers: Numbers, operands: tuple[Any, ...]) -> None:
    """Raises ValueError for an argument that the kind does not have, or lacks."""
    _, rejected, ref_chosen, ref_rejected, nll, baseline, desirable = operands
    _, smoothing, margin, nll_weight, good, bad = numbers
    is_kto = kind == "kto"
    for name, value, allowed, nothing in (
        ("label_smoothing", smoothing, kind in _LOGISTIC, 0.0),
        ("margin", margin, kind in _LOGISTIC, 0.0),
        ("weights", (good, bad), is_kto, (1.0, 1.0)),
        ("nll_weight", nll_weight, not is_kto, 0.0),
    ):
        if not allowed and value != nothing:
            raise ValueError(f"{NAME}: {name} is {value}, expected {nothing} for kind {kind!r}")
    has_reference = kind not in _WITHOUT_REFERENCE
    for name, x, allowed in (
        ("ref_chosen", ref_chosen, has_reference),
        ("ref_rejected", ref_rejected, has_reference and rejected is not None),
        ("nll", nll, nll_weight > 0),
        ("baseline", baseline, is_kto),
        ("desirable", desirable, is_kto and rejected is None),
    ):
        if x is not None and not allowed:
            after = f"kind {kind!r}" if name != "nll" else "an nll_weight of 0"
            after += " with rejected" if is_kto and name == "desirable" else ""
            raise ValueError(f"{NAME}: {name} is given, expected None for {after}")
    if rejected is None and desirable is None:
        instead = "an array or desirable" if is_kto else "an array"
        raise ValueError(f"{NAME}: rejected is None, expected {instead}")
    if rejected is not None and (ref_chosen is None) != (ref_rejected is None):
        missing = "ref_chosen" if ref_chosen is None else "ref_rejected"
        raise ValueError(f"{NAME}: {missing} is None, expected both references or none")


def _check_shapes(operands: tuple[Any, ...]) -> None:
    chosen, _, _, _, _, baseline, desirable = operands
    shape = shape_of(chosen)
    if not shape:
        raise ValueError(f"{NAME}: chosen is 0-dimensional, expected [..., pairs]")
    for name, x, scalar in (("baseline", baseline, True), ("desirable", desirable, False)):
        if x is not None and shape_of(x) != shape and not (scalar and shape_of(x) == ()):
            expected = f"[] or {[*shape]}" if scalar else f"{[*shape]}"
            raise ValueError(f"{NAME}: {name} has shape {[*shape_of(x)]}, expected {expected}")
