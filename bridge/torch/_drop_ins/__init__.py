"""What the drop-ins of `bridge.torch.megatron`, `apex`, `liger`, `slapo` and `towhee` stand on.

- `functions`: what drop-ins for an original's autograd Function have in common.
- `broadcasting`: the fused ops with operands of any shapes that broadcast.
- `scale_mask_softmax`: Megatron-LM's softmax, functions and module.
- `gates`: gated units with a bias that broadcasts and a weight per token; on it `swiglu`, `geglu`
  and, beside it, `squared_relu`, each a file of Megatron-LM's.
- `norms`: the norms over several dimensions; on it `apex_norms`, the functions of apex, and
  `fused_layer_norm`, a file of Megatron-LM's.
- `losses`: the cross-entropies of Megatron-LM and apex.
- `liger_norms`, `liger_modulated_norm`, `liger_gates`, `liger_mlps`, `liger_rotary`,
  `liger_softmax`, `liger_losses`, `liger_split_losses`: those of Liger-Kernel.
"""
