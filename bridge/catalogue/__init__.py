"""The declared ops of bridge; `bridge.declared` makes their functions and derivatives.

- `dyt`: dyt and poly_norm, with parameters of one number.
- `gated_norms`: RMS norms with a gate.
- `gates`: gated linear units and the squared ReLU.
- `group_norm`: group norm with an activation.
- `log_probs`: log_softmax, logsumexp, and the log-probability of a label.
- `norm_rotary`: the RMS norm of a head and its rotary position embedding.
- `norms`: rms_norm and layer_norm, optionally with a residual added first.
- `numbers`: operands of one number, or of a few, for ops of rows.
- `optimizers`: steps of AdamW and SGD, and clipping by the global norm.
- `rotary`: rotary position embedding.
- `sinks`: softmax with one more logit for each row.
- `vision`: batch norm, pooling and resizing.
"""
