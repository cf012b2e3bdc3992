"""The code behind `bridge.torch.megatron`, `apex`, `liger`, `huggingface`, `slapo` and `towhee`.

- `function_classes`: the base of all drop-ins for an original's autograd Function.
- `sizes`: checks of sizes in constructors.
- `broadcasting`: the fused ops with operands of any shapes that broadcast.
- `scale_mask_softmax`: Megatron-LM's softmax, functions and module.
- `packed_gates`: gated units with a bias that broadcasts and a weight per token; `swiglu` and
  `geglu` are built on it, and `squared_relu` uses parts of it. Each of these is one file of
  Megatron-LM.
- `norms_over_dimensions`: these norms; `apex_norms`, the functions of apex, and
  `fused_layer_norm`, a file of Megatron-LM, are built on it.
- `apex_rotary`: the rotary embeddings of apex.
- `losses`: the cross-entropies of Megatron-LM and apex.
- `liger`: Liger-Kernel.
- `huggingface`: `layers` has layers by name; `models` has `replace` for whole models, on the other
  files.
"""
