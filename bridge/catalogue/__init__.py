"""Ops that are declarations: what follows from them is in `bridge.declared`.

- `gates`: gated linear units and the squared ReLU.
- `log_probs`: log_softmax, logsumexp, and the log-probability of a label.
- `norms`: rms_norm and layer_norm, with a residual that is added first.
- `rotary`: rotary position embedding.
- `sinks`: softmax with one more logit a row.
"""
