"""Ops of reinforcement learning, preference learning and distillation.

- `divergences`: the entropy of a softmax, and divergences between two of them.
- `policy_loss`: the clipped losses of policy gradients.
"""
