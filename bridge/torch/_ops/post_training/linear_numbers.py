"""Log-probabilities, entropies and divergences of linear layers' logits, for PyTorch."""

from __future__ import annotations

from torch import Tensor

from bridge.torch._adapter.overrides import hand_over, is_overridden
from bridge.torch._ops.post_training.linear_compositions import NUMBERS


def linear_token_log_probs(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    chunk: int | None = None,
    bits: str | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Log-probabilities of labels and entropies of the rows of hidden @ weight.T + bias.

    The logits of only `chunk` rows exist at a time, in the forward pass and in the backward pass,
    which computes them again. With s = (hidden @ weight.T + bias)/temperature:

    - log_probs = s[label] − log Σ exp(s), as `token_log_probs`;
    - entropy = −Σ p·log p with p = softmax(s), as `entropy`.

    Both have gradients towards hidden, weight and bias, to any order and in forward mode.
    Torch computes the matrix products. With bits="portable" bridge computes them: values have
    the bits of `token_log_probs` and `entropy` of `linear(hidden, weight, bias)`, and values and
    gradients are the same in `bridge.jax`, for any chunk and any number of threads.

    Args:
      hidden: `[..., features]`. Under autocast, hidden, weight and bias are converted to its dtype,
        except float64 tensors.
      weight: `[V, features]`, of hidden's dtype.
      labels: `[...]` of any integer dtype.
      bias: `[V]`, of hidden's dtype, or None.
      temperature: a positive number, by which logits are divided.
      chunk: the number of rows whose logits exist at a time. None: as many as need about
        the memory of `hidden`, at least 256, and at least 512 if there are 4096 rows or more.
      bits: None for torch's matrix products, or "portable" for bridge's. A chunk has then the
        largest 256·2ⁿ rows that `chunk` allows, at least 256.

    Returns:
      log_probs and entropy, `[...]` in float32, for float64 in float64. NaN for a label out of
      range that could not be checked before: on a GPU and under transforms.

    Raises:
      TypeError: an argument is no dense tensor or has another dtype; a number is none.
      ValueError: shapes that do not fit; a label out of range; temperature is out of range; chunk
        is no positive integer; another word for bits.

    Example:
      >>> linear_token_log_probs(torch.zeros((1, 3)), torch.ones((4, 3)), torch.tensor([0]))
      (tensor([-1.3863]), tensor([1.3863]))
    """
    if is_overridden(given := (hidden, weight, labels, bias)):
        return hand_over(given)  # type: ignore[no-any-return]
    layer = hidden, weight, bias
    return NUMBERS.log_probs(layer, labels, chunk, bits, temperature)  # type: ignore[no-any-return]


def linear_divergence(
    p_hidden: Tensor,
    p_weight: Tensor,
    q_hidden: Tensor,
    q_weight: Tensor,
    *,
    p_bias: Tensor | None = None,
    q_bias: Tensor | None = None,
    kind: str = "kl",
    beta: float = 0.5,
    temperature: float = 1.0,
    chunk: int | None = None,
    bits: str | None = None,
) -> Tensor:
    r"""A divergence between the softmaxes of two linear layers' logits, a number for each row.

    With p_logits = p_hidden @ p_weight.T + p_bias, and q_logits likewise:

    - "kl": `kl_div(p_logits, q_logits)`;
    - "js": `js_div(p_logits, q_logits, beta=beta)`;
    - "tv": `tv_distance(p_logits, q_logits)`.

    The logits of only `chunk` rows exist at a time, in the forward pass and in the backward pass,
    which computes them again. All operands have gradients, to any order and in forward mode: detach
    a teacher. Torch computes the matrix products. With bits="portable" bridge computes them: values
    and gradients are the same in `bridge.jax`, for any chunk and any number of threads.

    Args:
      p_hidden, q_hidden: `[..., features]`, whose numbers of features may differ. Autocast as for
        `linear_token_log_probs`.
      p_weight, q_weight: `[V, features]`. All operands have one dtype.
      p_bias, q_bias: `[V]` or None.
      kind: one of the words above.
      beta: the weight of p in the mixture of "js".
      temperature: a positive number, by which logits are divided.
      chunk, bits: as for `linear_token_log_probs`.

    Returns:
      `[...]` in float32, for float64 in float64, in nats.

    Raises:
      TypeError: an argument is no dense tensor or has another dtype; a number is none.
      ValueError: shapes that do not fit; an unknown word; a number out of range; chunk is no
        positive integer.

    Example:
      >>> x, w = torch.ones((1, 3)), torch.ones((4, 3))
      >>> linear_divergence(x, w, x, 2 * w)
      tensor([0.])
    """
    if is_overridden(given := (p_hidden, p_weight, q_hidden, q_weight, p_bias, q_bias)):
        return hand_over(given)  # type: ignore[no-any-return]
    layers = (p_hidden, p_weight, p_bias), (q_hidden, q_weight, q_bias)
    return NUMBERS.divergence(layers, chunk, bits, kind, beta, temperature)  # type: ignore[no-any-return]
