"""The loss of policy gradients, for PyTorch."""

from __future__ import annotations

from torch import Tensor

from bridge.catalogue.post_training.policy_loss import PolicyLoss
from bridge.torch._adapter import arrays
from bridge.torch._adapter.overrides import hand_over, is_overridden
from bridge.torch._ops.cross_entropy import flat

_policy_loss = PolicyLoss(arrays, flat)


def policy_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor | None = None,
    *,
    kind: str = "grpo",
    clip: tuple[float, float] = (0.2, 0.2),
    ref_log_probs: Tensor | None = None,
    kl: float = 0.0,
    level: str = "token",
    temperatures: tuple[float, float] = (1.0, 1.05),
    reduction: str | None = None,
) -> Tensor:
    r"""The clipped loss of policy gradients, of log-probabilities of tokens.

    With d = log_probs − old_log_probs, r = exp(d), A the advantage, and clip = (low, high):

    - "ppo", "grpo", "dapo", "dr_grpo": −min(r·A, c·A), c = min(max(r, 1 − low), 1 + high).
    - "gspo": the same, with the mean of d over a sequence's tokens in place of d.
    - "cispo": −stop_gradient(c)·A·log_probs.
    - "sapo": −(4/τ)·sigmoid(τ·(r − 1))·A, τ the first temperature where A > 0, else the second.

    With ref_log_probs and e = ref_log_probs − log_probs, kl·(exp(e) − 1 − e) is added to each.

    The papers: PPO arXiv:1707.06347, GRPO 2402.03300, DAPO 2503.14476, Dr. GRPO 2503.20783, GSPO
    2507.18071, CISPO 2506.13585, SAPO 2511.20347. Differentiable to any order; `bridge.jax`
    gives the same bits.

    Args:
      log_probs, old_log_probs: `[..., sequences, tokens]` of one shape, of dtype float16, bfloat16,
        float32 or float64. Both have a gradient: detach what is constant.
      advantages: `[..., sequences]`, or one for each token.
      mask: of log_probs' shape, True where a token counts. Other tokens have the loss 0 and the
        gradient 0, whatever their numbers are, also NaN.
      kind: one of the words above.
      clip: low and high, from 0 on. DAPO's paper has (0.2, 0.28), GSPO's (3e-4, 4e-4).
      ref_log_probs: log-probabilities of a reference policy, of log_probs' shape.
      kl: the weight of the divergence from it, from 0 on.
      level: "token", or "sequence" for the ratios of "gspo" in another kind; "gspo" has no others.
      temperatures: τ of "sapo" for positive and for other advantages.
      reduction: "sequence_mean", the mean over sequences of the mean over a sequence's tokens;
        "token_mean", the sum over all tokens by their number; "length_mean", the mean over
        sequences of the sum over tokens by the width of the array; "sum"; or "none". By default the
        paper's: "sequence_mean" for "grpo", "gspo" and "sapo", "token_mean" for "ppo", "dapo" and
        "cispo", "length_mean" for "dr_grpo".

    Returns:
      A number in float32, for float64 in float64; for "none" log_probs' shape in the promoted
      dtype. 0 without a token that counts. A sequence without one counts as a sequence. A ratio
      that overflows is +∞, and its loss +∞ or −(1 + high)·A, and NaN where A is 0.

    Raises:
      TypeError: an operand is no dense tensor or has another dtype; a number is none.
      ValueError: shapes that do not fit; an unknown word; a number out of range; kl is not 0 and
        ref_log_probs is None.

    Example:
      >>> policy_loss(torch.zeros(1, 2), torch.zeros(1, 2), torch.ones(1))
      tensor(-1.)
    """
    given = (log_probs, old_log_probs, advantages, mask, ref_log_probs)
    if is_overridden(given):
        return hand_over(given)  # type: ignore[no-any-return]
    return _policy_loss.run(  # type: ignore[no-any-return]
        log_probs,
        old_log_probs,
        advantages,
        mask,
        ref_log_probs,
        reduction,
        kind=kind,
        clip=clip,
        temperatures=temperatures,
        kl=kl,
        level=level,
    )
