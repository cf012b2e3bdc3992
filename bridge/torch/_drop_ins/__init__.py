"""What the drop-ins of `bridge.torch.megatron`, `slapo` and `towhee` stand on.

- `functions`: what drop-ins for an original's autograd Function have in common.
- `broadcasting`: the fused ops with operands of any shapes that broadcast.
- `scale_mask_softmax`: Megatron-LM's softmax, functions and module.
"""
