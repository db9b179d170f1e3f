"""Value estimates that rules share: categorical and scalar values, V-trace and Retrace."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from discorl.bounds import MAX_SETTING, check_shares, shown
from discorl.errors import DiscorlError
from discorl.ops import categorical, losses, moments, returns, squash
from discorl.ops.moments import MeanFn, alone
from discorl.ops.softmax import mlp, softmax_linear
from discorl.types import ActionValues, Layers, Reading, Rollout, RuleState, StateValues

MAX_BINS = 100_000
FLOOR = 0.1
"""Share of a first distribution over values that all bins have alike."""


@dataclass(frozen=True)
class ValueHead:
    """How a head's output represents a value."""

    num_bins: int | None = 601
    """How many bins a categorical value has; None for a plain scalar."""
    max_abs: float = 300.0
    """The bins cover [-max_abs, max_abs], after squashing."""
    squashed: bool = True
    """Whether the head predicts the value on the signed-hyperbolic scale."""

    def __post_init__(self) -> None:
        if self.num_bins is not None and self.num_bins > MAX_BINS:
            raise DiscorlError(
                f"a categorical value has at most {MAX_BINS} bins, not {shown(self.num_bins)}: "
                "lower num_bins"
            )
        if self.num_bins is not None and self.num_bins < 2:
            raise DiscorlError(
                f"a categorical value needs at least 2 bins, not {self.num_bins}: raise num_bins, "
                "or set it to None for a scalar value"
            )
        if not 0 < self.max_abs <= MAX_SETTING:
            raise DiscorlError(
                f"the bins of a value must extend to a number above 0 and at most {MAX_SETTING:g}, "
                f"not {shown(self.max_abs)}: set max_abs_value to the largest value you expect, "
                "such as 300"
            )

    @property
    def size(self) -> int:
        """How many outputs the head needs."""
        return self.num_bins or 1

    def value(self, output: Tensor) -> Tensor:
        """The scalar value. [..., K] -> [...]"""
        if self.num_bins is None:
            return self._unsquash(output.squeeze(-1))
        return self._unsquash(categorical.expectation(output, self.max_abs))

    @torch.no_grad()
    def constant_value(self, x: Tensor, layers: Layers = ()) -> Tensor:
        """The value of outputs, or of what ``layers`` make of ``x``. [R, D] -> [R]

        A constant: no gradient passes.
        """
        if self.num_bins is None:
            return self.value(mlp(x, layers))
        bins = categorical.support(self.num_bins, self.max_abs, x).unsqueeze(1)
        return self._unsquash(softmax_linear(x, layers, bins).squeeze(1))

    def _unsquash(self, mean: Tensor) -> Tensor:
        return squash.signed_parabolic(mean) if self.squashed else mean

    def output_of(self, value: Tensor) -> Tensor:
        """An output with this value, as far as the bins reach. [...] -> [..., K]

        A hump around the value, on a floor that all bins share, so that none is out of reach.
        """
        mean = (squash.signed_hyperbolic(value) if self.squashed else value).unsqueeze(-1)
        if self.num_bins is None:
            return mean
        num_bins = self.num_bins
        bins = categorical.support(num_bins, self.max_abs, value)
        width = min(max(1.0, 2 * self.max_abs / (num_bins - 1)), self.max_abs / 2)

        def at(centre: Tensor) -> Tensor:
            hump = torch.softmax(-0.5 * ((bins - centre) / width).square(), -1)
            return (1 - FLOOR) * hump + FLOOR / num_bins

        # The floor and the ends of the bins pull the mean towards 0: the centre lies farther out.
        low, high = (torch.full_like(mean, side * 4 * self.max_abs) for side in (-1, 1))
        for _ in range(40):
            middle = (low + high) / 2
            is_low = (at(middle) * bins).sum(-1, keepdim=True) < mean
            low, high = torch.where(is_low, middle, low), torch.where(is_low, high, middle)
        return torch.log(at((low + high) / 2))

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Loss towards a constant scalar target. [..., K], [...] -> [...]"""
        target = target.detach()
        if self.squashed:
            target = squash.signed_hyperbolic(target)
        if self.num_bins:
            return losses.two_hot_loss(output, target, self.max_abs)
        return 0.5 * (output.squeeze(-1) - target).square()


@dataclass(frozen=True)
class ReturnSettings:
    """How returns are discounted, traced and normalised, for every rule."""

    discount: float = 0.997
    """Discount factor."""
    lambda_: float = 0.95
    """Trace parameter of Retrace and V-trace."""
    moment_decay: float = 0.99
    """Decay of the running moments that advantages and value errors are normalised by."""

    def __post_init__(self) -> None:
        check_shares("returns: ", self, "discount", "lambda_", "moment_decay")


def estimate_values(
    value: Tensor,
    logits: Tensor,
    rollout: Rollout,
    state: RuleState,
    settings: ReturnSettings,
    across: MeanFn = alone,
) -> tuple[StateValues, RuleState]:
    """V-trace from state values [T, B]. Everything is a constant for gradients."""
    value, rho, discounts = _prepare(value, logits, rollout, settings)
    target, advantage = returns.vtrace(value, rollout.rewards[1:], discounts, rho, settings.lambda_)
    td = target - value[:-1]
    state = _updated(state, advantage, td, rollout, settings, across)
    values = StateValues(
        value=value,
        target_value=value,
        rho=rho,
        advantage=advantage,
        normalized_advantage=moments.normalize(state.advantage_moments, advantage),
        value_target=target,
        td=td,
        normalized_td=moments.normalize(state.td_moments, td, subtract_mean=False),
    )
    return values, state


def estimate_action_values(
    q_value: Tensor,
    target_q_value: Tensor,
    logits: Tensor,
    rollout: Rollout,
    state: RuleState,
    settings: ReturnSettings,
    across: MeanFn,
) -> tuple[ActionValues, RuleState]:
    """Retrace from action values [T, B, A] of the online and the target network.

    V averages both under the online policy. Everything is a constant for gradients.
    """
    q_value, target_q_value = q_value.detach(), target_q_value.detach()
    pi = torch.softmax(logits.detach(), -1)
    value = (pi * q_value).sum(-1)
    target_value = (pi * target_q_value).sum(-1)
    target_value, rho, discounts = _prepare(target_value, logits, rollout, settings)
    actions = rollout.actions[:-1]

    q_target = returns.retrace(
        categorical.select_action(target_q_value[:-1], actions),
        target_value,
        rollout.rewards[1:],
        discounts,
        rho,
        settings.lambda_,
    )
    advantage = q_target - target_value[:-1]
    value_target = target_value[:-1] + rho.clamp(max=1) * advantage
    q_td = q_target - categorical.select_action(q_value[:-1], actions)
    qv_advantage = target_q_value - target_value.unsqueeze(-1)
    state = _updated(state, advantage, q_td, rollout, settings, across)
    values = ActionValues(
        value=value,
        target_value=target_value,
        rho=rho,
        advantage=advantage,
        normalized_advantage=moments.normalize(state.advantage_moments, advantage),
        value_target=value_target,
        td=value_target - value[:-1],
        q_value=q_value,
        target_q_value=target_q_value,
        q_target=q_target,
        q_td=q_td,
        normalized_q_td=moments.normalize(state.td_moments, q_td, subtract_mean=False),
        qv_advantage=qv_advantage,
        normalized_qv_advantage=moments.normalize(state.advantage_moments, qv_advantage),
    )
    return values, state


def estimate_read_values(
    online: Reading,
    of_target: Reading,
    logits: Tensor,
    rollout: Rollout,
    state: RuleState,
    settings: ReturnSettings,
    across: MeanFn,
) -> tuple[ActionValues | StateValues, RuleState]:
    """From what a rule reads of the online and the target network.

    Agents without values have returns alone, for the warm start of discovery and the logs.
    """
    if online.q_value is not None and of_target.q_value is not None:
        return estimate_action_values(
            online.q_value, of_target.q_value, logits, rollout, state, settings, across
        )
    nothing = torch.zeros_like(rollout.rewards)
    return estimate_values(nothing, logits, rollout, state, settings, across)


def _prepare(
    value: Tensor, logits: Tensor, rollout: Rollout, settings: ReturnSettings
) -> tuple[Tensor, Tensor, Tensor]:
    """Constant values, importance weights and discounts."""
    rho = categorical.importance_weight(
        logits[:-1].detach(), rollout.behaviour_logits[:-1], rollout.actions[:-1]
    )
    discounts = settings.discount * (~rollout.is_terminal).to(value.dtype)
    return value.detach(), rho, discounts


def _updated(
    state: RuleState,
    advantage: Tensor,
    td: Tensor,
    rollout: Rollout,
    settings: ReturnSettings,
    across: MeanFn,
) -> RuleState:
    """Moments are updated before anything is normalised by them."""
    rest = settings.moment_decay, across, rollout.is_dead
    return replace(
        state,
        advantage_moments=moments.update_moments(state.advantage_moments, advantage, *rest),
        td_moments=moments.update_moments(state.td_moments, td, *rest),
    )
