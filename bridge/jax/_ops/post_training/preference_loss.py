"""Losses of preferences, for JAX."""

from __future__ import annotations

import jax

from bridge.catalogue.post_training.preference_loss import PreferenceLoss
from bridge.jax._adapter import arrays
from bridge.jax._ops.cross_entropy import flat

ArrayLike = jax.typing.ArrayLike

_preference_loss = PreferenceLoss(arrays, flat)


def preference_loss(
    chosen: ArrayLike,
    rejected: ArrayLike | None,
    ref_chosen: ArrayLike | None = None,
    ref_rejected: ArrayLike | None = None,
    *,
    kind: str = "dpo",
    beta: float = 0.1,
    label_smoothing: float = 0.0,
    margin: float = 0.0,
    nll: ArrayLike | None = None,
    nll_weight: float | None = None,
    baseline: ArrayLike | None = None,
    desirable: ArrayLike | None = None,
    weights: tuple[float, float] = (1.0, 1.0),
    reduction: str = "mean",
) -> jax.Array:
    r"""The loss of preferences, of log-probabilities of chosen and rejected answers.

    With c = chosen − ref_chosen and r = rejected − ref_rejected, references of 0 where they are
    None, and d = c − r:

    - "dpo": −log σ(beta·d − margin) (arXiv:2305.18290).
    - "ipo": (d − 1/(2·beta))² (arXiv:2310.12036).
    - "simpo": −log σ(beta·d − margin), of means over tokens, without a reference
      (arXiv:2405.14734).
    - "orpo": nll − beta·log σ(odds(chosen) − odds(rejected)) with odds(x) = x − log(1 − exp(x)), of
      means over tokens (arXiv:2403.07691).
    - "kto": weights[0]·(1 − σ(beta·(c − baseline))) + weights[1]·(1 − σ(beta·(baseline − r)))
      (arXiv:2402.01306).
    - "cpo": nll − log σ(beta·d − margin) (arXiv:2401.08417).

    Label smoothing ε takes (1 − ε) of −log σ(z), and ε of −log σ(−z). Differentiable to any order;
    `bridge.torch` gives the same bits.

    Args:
      chosen, rejected: `[..., pairs]` of one shape, of dtype float16, bfloat16, float32 or float64:
        the sum of a sequence's token log-probabilities, or their mean as said above. All have
        gradients: detach what is constant. For "kto", rejected may be None: chosen has then the
        answers of both kinds, and `desirable` tells them apart.
      ref_chosen, ref_rejected: log-probabilities of a reference model, both or none.
      kind: one of the words above.
      beta: the paper's β, or ORPO's λ. SimPO's paper has 2.0 to 2.5.
      label_smoothing, margin: for "dpo", "simpo" and "cpo". SimPO's paper calls the margin γ, and
        has 0.3 to 1.6.
      nll: negative log-likelihoods of the chosen answers, of the same shape; None for −chosen.
      nll_weight: its weight, also for "dpo", "ipo" and "simpo". None: 1 for "orpo" and "cpo", else
        0.
      baseline: KTO's estimate of the divergence from the reference, one number or one a pair; a
        constant. None: 0.
      desirable: booleans `[..., pairs]`, for "kto" without rejected.
      weights: of desirable and of undesirable answers, for "kto".
      reduction: "mean" over pairs, "sum" or "none".

    Returns:
      A number in float32, for float64 in float64; for "none" the shape of chosen in the promoted
      dtype. 0 without a pair.

    Raises:
      TypeError: an operand is no array or has another dtype; a number is none.
      ValueError: shapes that do not fit; an unknown word; a number out of range; an argument that
        the kind does not have.

    Example:
      >>> preference_loss(jnp.ones(2), jnp.zeros(2), kind="simpo", beta=2.0)
      Array(0.126928, dtype=float32)
    """
    return _preference_loss.run(  # type: ignore[no-any-return]
        chosen,
        rejected,
        ref_chosen,
        ref_rejected,
        nll,
        baseline,
        desirable,
        weights,
        kind=kind,
        beta=beta,
        label_smoothing=label_smoothing,
        margin=margin,
        nll_weight=nll_weight,
        reduction=reduction,
    )
