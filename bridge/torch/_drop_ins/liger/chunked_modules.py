"""The modules of Liger-Kernel's chunked losses, which store the options of a Function."""

# Annotations are evaluated (no `from __future__ import annotations`): torch.fx cannot pickle a
# trace of a module whose forward has annotations as strings.

import inspect
from typing import Any, ClassVar

import torch
from torch import Tensor

from bridge.torch._drop_ins.liger.chunked_distillation import LigerFusedLinearJSDFunction
from bridge.torch._drop_ins.liger.chunked_policy import LigerFusedLinearGRPOFunction
from bridge.torch._drop_ins.liger.chunked_preferences import (
    LigerFusedLinearCPOFunction,
    LigerFusedLinearDPOFunction,
    LigerFusedLinearKTOFunction,
    LigerFusedLinearORPOFunction,
    LigerFusedLinearSimPOFunction,
)
from bridge.torch._drop_ins.liger.dpo_losses import check_dpo


class _Loss(torch.nn.Module):
    """A loss whose constructor takes `_options`, in this order, and stores them as attributes."""

    _function: ClassVar[Any]
    _options: ClassVar[dict[str, Any]]
    loss_type: Any
    label_smoothing: Any

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        if "_options" in vars(cls):
            kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
            parameters = [inspect.Parameter(k, kind, default=v) for k, v in cls._options.items()]
            cls.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__()
        bound = self.__signature__.bind(*given, **named)  # type: ignore[operator,union-attr]
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            setattr(self, name, value)

    def _run(self, *given: Any, **named: Any) -> Any:
        options = {name: getattr(self, name) for name in self._options}
        return self._function.apply(*given, **named, **options)


class LigerFusedLinearDPOLoss(_Loss):
    """DPO of hidden states and the last layer.

    The options are those of `LigerFusedLinearDPOFunction`.
    """

    _function = LigerFusedLinearDPOFunction
    _options: ClassVar = {
        "ignore_index": -100,
        "beta": 0.1,
        "alpha": 1.0,
        "compute_nll_loss": False,
        "compiled": True,
        "use_ref_model": True,
        "average_log_prob": False,
        "chunk_size": 1,
        "loss_type": "sigmoid",
        "label_smoothing": 0.0,
        "discopop_tau": 0.05,
    }

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        check_dpo(self.loss_type, self.label_smoothing)

    def forward(
        self,
        lin_weight: Tensor,
        _input: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        ref_input: Tensor | None = None,
        ref_weight: Tensor | None = None,
        ref_bias: Tensor | None = None,
    ) -> Any:
        """Returns the loss and the statistics."""
        return self._run(_input, lin_weight, target, bias, ref_input, ref_weight, ref_bias)


class LigerFusedLinearORPOLoss(_Loss):
    """ORPO of hidden states and the last layer.

    The options are those of `LigerFusedLinearORPOFunction`.
    """

    _function = LigerFusedLinearORPOFunction
    _options: ClassVar = {
        "ignore_index": -100,
        "beta": 0.1,
        "compute_nll_loss": True,
        "compiled": True,
        "chunk_size": 1,
    }

    def forward(
        self,
        lin_weight: Tensor,
        _input: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        nll_target: Tensor | None = None,
    ) -> Any:
        """Returns the loss and the statistics."""
        return self._run(_input, lin_weight, target, bias, nll_target=nll_target)


class LigerFusedLinearSimPOLoss(_Loss):
    """SimPO of hidden states and the last layer.

    The options are those of `LigerFusedLinearSimPOFunction`.
    """

    _function = LigerFusedLinearSimPOFunction
    _options: ClassVar = {
        "ignore_index": -100,
        "beta": 0.1,
        "alpha": 1.0,
        "label_smoothing": 0.0,
        "compute_nll_loss": True,
        "compiled": True,
        "gamma": 0.5,
        "chunk_size": 1,
    }

    def forward(
        self, lin_weight: Tensor, _input: Tensor, target: Tensor, bias: Tensor | None = None
    ) -> Any:
        """Returns the loss and the statistics."""
        return self._run(_input, lin_weight, target, bias)


class LigerFusedLinearCPOLoss(LigerFusedLinearSimPOLoss):
    """CPO of hidden states and the last layer.

    The options are those of `LigerFusedLinearCPOFunction`.
    """

    _function: ClassVar[Any] = LigerFusedLinearCPOFunction
    _options: ClassVar = {
        "ignore_index": -100,
        "beta": 0.1,
        "alpha": 1.0,
        "label_smoothing": 0.0,
        "compute_nll_loss": True,
        "compiled": True,
        "average_log_prob": False,
        "chunk_size": 1,
    }


class LigerFusedLinearKTOLoss(_Loss):
    """KTO of hidden states and the last layer.

    The options are those of `LigerFusedLinearKTOFunction`.
    """

    _function = LigerFusedLinearKTOFunction
    _options: ClassVar = {
        "ignore_index": -100,
        "beta": 0.1,
        "compiled": True,
        "use_ref_model": False,
        "average_log_prob": False,
        "chunk_size": 1,
    }

    def forward(
        self,
        _input: Tensor,
        lin_weight: Tensor,
        target: Tensor,
        bias: Tensor | None = None,
        preference_labels: Tensor | None = None,
        ref_input: Tensor | None = None,
        ref_weight: Tensor | None = None,
        ref_bias: Tensor | None = None,
        kl: Tensor | None = None,
    ) -> Any:
        """Returns the loss and the statistics."""
        layer = _input, lin_weight, target, preference_labels, bias
        return self._run(*layer, ref_input, ref_weight, ref_bias, kl)


class LigerFusedLinearJSDLoss(_Loss):
    """Distillation from hidden states and the last layers.

    The options are those of `LigerFusedLinearJSDFunction`.
    """

    _function = LigerFusedLinearJSDFunction
    _options: ClassVar = {
        "weight_hard_loss": 0.5,
        "weight_soft_loss": 0.5,
        "beta": 0.5,
        "ignore_index": -100,
        "temperature": 1.0,
        "compiled": True,
        "chunk_size": 1024,
        "return_soft_hard_loss": False,
    }

    def forward(
        self,
        student_input: Tensor,
        student_weight: Tensor,
        teacher_input: Tensor,
        teacher_weight: Tensor,
        true_labels: Tensor,
        student_bias: Tensor | None = None,
        teacher_bias: Tensor | None = None,
    ) -> Any:
        """Returns the loss, and its parts where they are asked for."""
        teacher = teacher_input, teacher_weight
        return self._run(
            student_input, student_weight, *teacher, true_labels, student_bias, teacher_bias
        )


class LigerFusedLinearGRPOLoss(_Loss):
    """Policy gradients of hidden states and the last layer.

    The options are those of `LigerFusedLinearGRPOFunction`.
    """

    _function = LigerFusedLinearGRPOFunction
    _options: ClassVar = {
        "beta": 0.04,
        "compiled": True,
        "use_ref_model": True,
        "chunk_size": 1,
        "epsilon_low": 0.2,
        "epsilon_high": 0.2,
        "loss_type": "dapo",
        "max_completion_length": None,
        "importance_sampling_level": "token",
        "sapo_temperature_pos": 1.0,
        "sapo_temperature_neg": 1.05,
        "temperature": 1.0,
        "delta": None,
        "use_bias_correction_kl": False,
        "vespo_k_pos": 2.0,
        "vespo_lambda_pos": 3.0,
        "vespo_k_neg": 3.0,
        "vespo_lambda_neg": 2.0,
    }

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        for name in ("sapo_temperature_pos", "sapo_temperature_neg", "delta"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be positive, got {value}")

    def forward(
        self,
        _input: Tensor,
        lin_weight: Tensor,
        selected_token_ids: Tensor,
        attention_mask: Tensor,
        advantages: Tensor,
        bias: Tensor | None = None,
        ref_per_token_logps: Tensor | None = None,
        old_per_token_logps: Tensor | None = None,
        ref_input: Tensor | None = None,
        ref_weight: Tensor | None = None,
        ref_bias: Tensor | None = None,
        vllm_is_ratio: Tensor | None = None,
        num_items_in_batch: Any = None,
    ) -> Any:
        """Returns the loss and the statistics."""
        tokens = selected_token_ids, attention_mask, advantages
        log_probs = ref_per_token_logps, old_per_token_logps
        return self._run(
            _input,
            lin_weight,
            *tokens,
            bias,
            *log_probs,
            ref_input,
            ref_weight,
            ref_bias,
            vllm_is_ratio=vllm_is_ratio,
            num_items_in_batch=num_items_in_batch,
        )
