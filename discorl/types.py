"""The frozen dataclasses that pass between layers.

Shape legend, used in comments throughout the package:

    T   time steps of a rollout          A   actions
    B   trajectories in a batch          Y   size of the predictions y and z
    N   T * B rows                       K   bins of a categorical value
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

import torch
from torch import Tensor

Params = dict[str, Tensor]
"""Parameters by name, as ``torch.func.functional_call`` takes them."""

Layers = Sequence[tuple[Tensor, Tensor]]
"""Weight and bias of each layer of an MLP, with relu between them."""

Observation: TypeAlias = Any
"""A tensor, or a ``dict[str, Tensor]`` if the environment has Dict or Tuple observations.

Not written as a union: code that knows there is one tensor would have to prove it each time."""

Memory: TypeAlias = Any
"""What a recurrent network remembers: a tree of tensors [B, ...]; None for one without memory."""


@dataclass(frozen=True)
class ObservationSpec:
    """One tensor of an observation, without the batch."""

    shape: tuple[int, ...]
    """Images are channels first: (C, H, W)."""
    dtype: torch.dtype = torch.float32
    """float32, or uint8, which the network divides by 255."""
    is_image: bool = False


@dataclass(frozen=True)
class EnvSpec:
    """What an agent must know about an environment in advance."""

    observation_shape: tuple[int, ...]
    """Of a single tensor; () where ``observations`` names several."""
    num_actions: int
    success_return: float | None = None
    """Episodes that return at least this much count as successes; None if nothing does."""
    success_name: str = "success rate"
    is_image: bool = False
    """Whether observations are pictures, channels first."""
    observation_dtype: torch.dtype = torch.float32
    observations: dict[str, ObservationSpec] | None = None
    """The tensors of a Dict or Tuple observation by name, nested ones as "outer/inner"."""


@dataclass(frozen=True)
class Heads:
    """The outputs a rule asks of an agent's network, as sizes by name."""

    flat: dict[str, int]
    """Heads of the state, such as ``logits`` and ``y``."""
    per_action: dict[str, int] = field(default_factory=dict)
    """Heads of each (state, action) pair, such as ``z`` and ``q``."""


@dataclass(frozen=True)
class TimeStep:
    """What the environment shows at time t.

    ``reward`` and ``discount`` arrived with ``observation`` and belong to the action before it.
    Environments reset themselves, in one of two ways.

    In the same step: where ``discount`` is 0 an episode ended and ``observation`` is already the
    first of the next one. ``is_dead`` is None.

    In the next step: the episode that the action at t ends takes two time steps to turn over.
    At t+1 ``observation`` is the last of the old episode, ``reward`` its last reward, ``discount``
    is 0 and ``is_dead`` is True: whatever action is taken at t+1 is ignored and only resets. At
    t+2 ``observation`` is the first of the next episode, ``reward`` and ``discount`` are 0 and
    ``is_dead`` is False. So in both ways ``discount`` is 0 where an episode starts, and ``ended``
    is True once for each episode, where its last reward arrives.
    """

    observation: Observation  # [B, ...]
    reward: Tensor  # [B]
    discount: Tensor  # [B]
    is_dead: Tensor | None = None  # [B] bool; None if no step ever is
    truncated: Tensor | None = None  # [B] bool, ended but not terminated; None if none was
    final_observation: Observation | None = None  # [B, ...], right where ``truncated`` is
    raw_reward: Tensor | None = None  # [B], before scaling and clipping; None if there was neither
    action_mask: Tensor | None = None  # [B, A] bool, the allowed actions; None if all always are
    final_action_mask: Tensor | None = None  # [B, A], of ``final_observation``

    @property
    def ended(self) -> Tensor:
        """Whether the action before ended its episode, whose last reward is this one. [B]"""
        return self.discount == 0 if self.is_dead is None else self.is_dead


@dataclass(frozen=True)
class Rollout:
    """T time steps of B trajectories, with the action taken at each and the policy it came from.

    Where ``discounts`` is 0, the observation is the first of an episode; the reward there is the
    last one of the episode before. An environment that resets in the next step (see ``TimeStep``)
    spends two time steps on that, t+1 and t+2. Both hold the first observation of the new episode
    and discount 0. The reward is at t+1, where ``is_dead`` is True: nothing is learnt from that
    step, and leaving it out of every mean gives what an environment that resets at once would.

    With an ``action_mask``, ``behaviour_logits`` are those of a policy that takes only allowed
    actions (``ops/masks.py``), and learning is that of an agent which never had the others.
    """

    observations: Observation  # [T, B, ...]
    actions: Tensor  # [T, B]
    rewards: Tensor  # [T, B], of the action before
    discounts: Tensor  # [T, B], 0 at the first step of an episode
    behaviour_logits: Tensor  # [T, B, A]
    is_dead: Tensor | None = None  # [T, B] bool, whether the action at t is ignored; None if never
    raw_rewards: Tensor | None = None  # [T, B], as the environment gave them; None if unchanged
    memory: Memory = None  # of a recurrent agent before step 0, with a time axis: [1, B, ...] each
    action_mask: Tensor | None = None  # [T, B, A] bool, the allowed actions; None if all always are

    FORMER_NAMES: ClassVar = {"core_state": "memory"}  # in files of earlier versions

    @property
    def is_terminal(self) -> Tensor:
        """Whether the action at t ended its episode. [T-1, B]"""
        return self.discounts[1:] == 0

    @property
    def ended(self) -> Tensor:
        """Whether the reward at t is the last of its episode. [T, B]"""
        return self.discounts == 0 if self.is_dead is None else self.is_dead


@dataclass(frozen=True)
class AgentOutput:
    """Everything a network outputs for a state; heads that the rule does not need are None."""

    logits: Tensor  # [..., A]
    y: Tensor | None = None  # [..., Y]
    v: Tensor | None = None  # [..., K], or [..., 1] if scalar
    z: Tensor | None = None  # [..., A, Y]
    q: Tensor | None = None  # [..., A, K]
    aux_pi: Tensor | None = None  # [..., A, A]


@dataclass(frozen=True)
class Predictions:
    """The part of the agent's output that the loss trains."""

    logits: Tensor  # [T, B, A]


@dataclass(frozen=True)
class ValuePredictions(Predictions):
    """With a value of each state."""

    v: Tensor  # [T, B, K]


@dataclass(frozen=True)
class DiscoPredictions(Predictions):
    """Those of a rule that reads its agents: per-action heads at the taken action.

    S = T-1: the last time step is there to bootstrap from, and nothing is learnt from it. Heads
    that the rule does not need are None.
    """

    y: Tensor | None = None  # [S, B, Y]
    z_a: Tensor | None = None  # [S, B, Y]
    q_a: Tensor | None = None  # [S, B, K]
    aux_pi_a: Tensor | None = None  # [S, B, A]


P = TypeVar("P", bound=Predictions, covariant=True)


@dataclass(frozen=True)
class Reading:
    """What the rule takes from y, z and q: a few numbers instead of hundreds.

    The trajectory network and the lifetime LSTM each have embeddings of their own, in this order.
    What the rule does not read is empty or None.
    """

    y: tuple[Tensor, ...] = ()  # [T, B, E] each
    z: tuple[Tensor, ...] = ()  # [T, B, A, E] each
    q_value: Tensor | None = None  # [T, B, A]


class Reader(NamedTuple):
    """How a rule reads the agent's output. Rows are states, or (state, action) pairs.

    Each takes the output, or the input of its head [R, D] and the head's ``Layers``: of hundreds of
    numbers in a row only a few are wanted, so the rest need not leave the cache. What the rule does
    not read is None.
    """

    y: Callable[[Tensor, Layers], tuple[Tensor, ...]] | None = None
    """y [R, Y] -> its embeddings, one for each network of the rule: [R, E] and [R, E']."""
    z: Callable[[Tensor, Layers], tuple[Tensor, ...]] | None = None
    """z [R, Y] -> its embeddings."""
    q: Callable[[Tensor, Layers], Tensor] | None = None
    """q [R, K] -> its value [R]."""


@dataclass(frozen=True)
class Unroll(Generic[P]):
    """One pass of the agent's network over a rollout."""

    predictions: P


@dataclass(frozen=True)
class ReadUnroll(Unroll[P]):
    """One that the rule has read."""

    reading: Reading


@dataclass(frozen=True)
class Moments:
    """Running moments of a scalar, biased towards their start at zero."""

    mean: Tensor
    mean_square: Tensor
    decay_product: Tensor  # product of all decays so far: the weight still on the start


class LSTMState(NamedTuple):
    """Hidden and cell state."""

    hidden: Tensor
    cell: Tensor


@dataclass(frozen=True)
class Values:
    """Value estimates along a rollout."""

    value: Tensor  # [T, B], V of the online network
    target_value: Tensor  # [T, B], V' that bootstraps
    rho: Tensor  # [T-1, B], importance weight pi / mu of the taken action
    advantage: Tensor  # [T-1, B]
    normalized_advantage: Tensor  # [T-1, B]
    value_target: Tensor  # [T-1, B]
    td: Tensor  # [T-1, B], value_target - value


@dataclass(frozen=True)
class StateValues(Values):
    """Estimated from values of states."""

    normalized_td: Tensor  # [T-1, B]


@dataclass(frozen=True)
class ActionValues(Values):
    """Estimated from values of actions."""

    q_value: Tensor  # [T, B, A]
    target_q_value: Tensor  # [T, B, A]
    q_target: Tensor  # [T-1, B]
    q_td: Tensor  # [T-1, B], q_target - q of the taken action
    normalized_q_td: Tensor  # [T-1, B]
    qv_advantage: Tensor  # [T, B, A], q' - V'
    normalized_qv_advantage: Tensor  # [T, B, A]


V = TypeVar("V", bound=Values, covariant=True)


@dataclass(frozen=True)
class Targets(Generic[V]):
    """What a rule wants the agent's predictions to become: for hand-written ones, better values."""

    values: V


@dataclass(frozen=True)
class PolicyTargets(Targets[V]):
    """With a better policy as logits; the loss is the divergence of the policy from it."""

    pi: Tensor  # [T-1, B, A], pi-hat
    target_logits: Tensor  # [T, B, A], the target network's policy


@dataclass(frozen=True)
class DiscoTargets(PolicyTargets[Values]):
    """With targets for predictions, as logits too.

    ``values`` are ``ActionValues`` if the rule's agents have a q, else returns without a critic.
    """

    y: Tensor | None  # [T-1, B, Y], y-hat
    z: Tensor | None  # [T-1, B, Y], z-hat for the taken action
    lifetime_input: Tensor | None  # [T-1, B, 1], what the lifetime LSTM is told of them


@dataclass(frozen=True)
class RuleState:
    """What a rule remembers of one agent's lifetime."""

    advantage_moments: Moments
    td_moments: Moments
    lifetime_rnn: LSTMState | None = None
    target_params: Params | None = None


@dataclass(frozen=True)
class AgentState:
    """All that changes when an agent learns."""

    params: Params
    optimiser: tuple  # one entry for each transform of the chain, see optim.py
    rule: RuleState


@dataclass(frozen=True)
class UpdateInfo:
    """What an update did, as tensors on the device: nothing here waits for the computation."""

    loss: Tensor
    losses: dict[str, Tensor]  # mean of each part, unweighted
    gradient: Params  # of the loss, what the optimiser was given
    gradient_norm: Tensor
    update_norm: Tensor
    predictions: Any  # of the kinds that the rule has: code that knows the rule knows them
    targets: Any
