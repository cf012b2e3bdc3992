"""Ops that are declarations: what follows from them is in `bridge.declared`.

- `gates`: gated linear units and the squared ReLU.
- `norms`: rms_norm and layer_norm, with a residual that is added first.
"""
