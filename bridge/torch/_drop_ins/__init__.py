"""The code behind `bridge.torch.megatron`, `apex`, `liger`, `huggingface`, `slapo` and `towhee`.

- `functions`: the base of all drop-ins for an original's autograd Function.
- `sizes`: checks of sizes in constructors.
- `broadcasting`: the fused ops with operands of any shapes that broadcast.
- `scale_mask_softmax`: Megatron-LM's softmax, functions and module.
- `gates`: gated units with a bias that broadcasts and a weight per token; `swiglu` and `geglu` are
  built on it, and `squared_relu` uses parts of it. Each of these is one file of Megatron-LM.
- `norms`: the norms over several dimensions; `apex_norms`, the functions of apex, and
  `fused_layer_norm`, a file of Megatron-LM, are built on it.
- `apex_rotary`: the rotary embeddings of apex.
- `losses`: the cross-entropies of Megatron-LM and apex.
- `liger_norms`, `liger_modulated_norm`, `liger_gates`, `liger_mlps`, `liger_rotary`,
  `liger_softmax`, `liger_losses`, `liger_split_losses`, `liger_megatron`: Liger-Kernel.
- `huggingface_layers`: layers by name; `huggingface_models`: `replace` for whole models, on the
  other files of `huggingface_…`.
"""
