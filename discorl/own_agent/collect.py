"""Acting with any agent in any environment."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor, nn

from discorl import tree
from discorl.agents.acting import Acting, act
from discorl.agents.network import Network
from discorl.envs.base import Env
from discorl.errors import DiscorlError
from discorl.ops.masks import mask_logits
from discorl.own_agent.contract import (
    Form,
    check_state,
    flattens_observations,
    form_of,
    forward_once,
    initial_state,
    policy_logits,
    reset_where,
)
from discorl.own_agent.disco_torch import check_discount, part_of
from discorl.own_agent.noise import noise_from
from discorl.rules.base import UpdateRule
from discorl.types import Memory, Params, Rollout, TimeStep

StepFn = Callable[[np.ndarray], tuple[Any, ...]]
"""Actions [B] -> (observations [B, ...], rewards [B], dones [B]); resets ended episodes itself.

With action masks, those of the observations [B, A] come fourth."""

_NOT_GIVEN: Any = object()


@tree.register
@dataclass(frozen=True, init=False)
class AgentRollout(Rollout):
    """A rollout whose ``agent_state`` is the agent's memory before the first step.

    It is what the agent itself returns, tensors [B, ...]. ``memory`` is the same with a time axis.
    """

    def __init__(self, *args: Any, agent_state: Any = _NOT_GIVEN, **fields: Any) -> None:
        if agent_state is not _NOT_GIVEN:
            fields["memory"] = tree.map(lambda x: torch.as_tensor(x).unsqueeze(0), agent_state)
        super().__init__(*args, **fields)

    @property
    def agent_state(self) -> Any:
        """The memory as the agent returned it."""
        return tree.index(self.memory, 0)

    def __getitem__(self, key: str) -> Any:
        """A part as code for disco-torch reads it.

        ``rollout["rewards"]`` is [T-1, B], with the reward that follows each action, and so are
        ``rollout["discounts"]``.
        """
        return part_of(self, key)

    def __setitem__(self, key: str, value: Any) -> None:
        """Rollouts do not change."""
        raise DiscorlError(
            f"rollouts do not change: make another one, dataclasses.replace(rollout, "
            f"{key!s:.60}=...), or change what step_fn returns"
        )


@overload
def collect_rollout(
    agent: nn.Module,
    step_fn: StepFn,
    obs: Any,
    state: Any = None,
    rollout_len: int = 29,
    device: torch.device | str | None = None,
    discount: float | None = None,
    *,
    generator: torch.Generator | None = None,
    previous: Rollout | None = None,
    action_mask: Any = None,
) -> tuple[AgentRollout, Any, Any]: ...


@overload
def collect_rollout(
    net: Network,
    params: Params,
    env: Env,
    env_state: Any,
    timestep: TimeStep,
    num_steps: int,
    generator: torch.Generator,
    *,
    bootstrap: UpdateRule | None = None,
    core_state: Memory = None,
) -> tuple[Any, ...]: ...


def collect_rollout(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
    """Act and record. One function for two kinds of loop.

    **Your agent, your environment**::

        rollout, obs, state = collect_rollout(agent, step_fn, obs, state, rollout_len=29)

    ``step_fn`` takes a NumPy array of actions [B] and returns observations, rewards and dones, as
    arrays or tensors. Environments reset themselves: where done, the observation is the first of
    the next episode. Pass ``obs`` and ``state`` as the last call returned them; ``state`` is the
    agent's memory, None at the start or if it has none.

    The environment takes ``rollout_len`` steps, and the agent learns from all of them: the rollout
    has one extra time step, whose observation starts the next rollout. Pass
    ``generator=trainer.generator`` so that a resumed run repeats its actions; otherwise PyTorch's
    global generator is used. Pass the last rollout as ``previous`` to say whether an episode begins
    at the first time step; otherwise it counts as the middle of one, as in disco-torch. Code for
    disco-torch may say ``lstm_state`` for ``state``, and ``discount=0.997``.

    If some actions are not allowed, ``step_fn`` returns the masks of the observations as a fourth
    value [B, A], True where an action is allowed. ``action_mask`` is that of ``obs``; after the
    first rollout, ``rollout.action_mask[-1]``.

    **An environment from this package**, with parameters by name::

        rollout, env_state, timestep = collect_rollout(
            net, params, env, env_state, timestep, num_steps=29, generator=rng
        )

    A network with memory also takes ``core_state``: None at first, then the memory that the last
    call returned as its fourth value.
    """
    if "params" in kwargs or (len(args) > 1 and isinstance(args[1], dict)):
        return _in_environments(*args, **kwargs)
    if "lstm_state" in kwargs:
        kwargs["state"] = kwargs.pop("lstm_state")
    return _by_step_fn(*args, **kwargs)


def _in_environments(
    net: Network,
    params: Params,
    env: Env,
    env_state: Any,
    timestep: TimeStep,
    num_steps: int,
    generator: torch.Generator,
    *,
    bootstrap: UpdateRule | None = None,
    core_state: Memory = _NOT_GIVEN,
) -> tuple[Any, ...]:
    with_memory = core_state is not _NOT_GIVEN
    if not with_memory and net.initial_memory(1) is not None:
        raise DiscorlError(
            "the network has a core: pass core_state=None to collect_rollout at first, then the "
            "state that it returns"
        )
    start = Acting(env_state, timestep, generator, core_state if with_memory else None)
    rollout, end = act(net, params, env, start, num_steps, bootstrap)
    result = rollout, end.env_state, end.timestep
    return (*result, end.memory) if with_memory else result


@torch.no_grad()
def _by_step_fn(
    agent: nn.Module,
    step_fn: StepFn,
    obs: Any,
    state: Any = None,
    rollout_len: int = 29,
    device: torch.device | str | None = None,
    discount: float | None = None,
    *,
    generator: torch.Generator | None = None,
    previous: Rollout | None = None,
    action_mask: Any = None,
) -> tuple[Rollout, Any, Any]:
    check_discount(discount)
    if not isinstance(rollout_len, int) or rollout_len < 1:
        raise DiscorlError(f"rollout_len must be a whole number, 1 or more, not {rollout_len!r}")
    place = torch.device(device) if device is not None else next(agent.parameters()).device
    form, flat = form_of(agent), flattens_observations(agent)
    observation = _as_observation(obs, place, flat)
    batch = _batch_of(observation)
    has_state = form is not Form.FEEDFORWARD
    fresh = initial_state(agent, batch, place) if has_state else None
    if state is None:
        state = fresh
    elif has_state:  # an agent without one passes it through, as disco-torch's loop expects
        _check_memory(state, fresh, batch)
    reward, going_on = _last_of(previous, batch, place)
    if has_state:
        state = reset_where(going_on == 0, fresh, state)
    start_state = state if form is Form.RECURRENT else None
    mask = None if action_mask is None else _as_mask(action_mask, place)

    steps = []
    for _ in range(rollout_len):
        with nullcontext() if generator is None else noise_from(generator, place):
            output, new_state = forward_once(agent, form, observation, state)
        logits = policy_logits(output, batch).detach()
        _check_mask(mask, logits)
        logits = mask_logits(logits, mask)
        actions = _sample(logits, generator)
        steps.append((observation, actions, reward, going_on, logits, mask))
        obs, rewards, dones, *masks = _checked(step_fn(actions.cpu().numpy()), mask is not None)
        mask = _as_mask(masks[0], place) if masks else None
        observation = _like(_as_observation(obs, place, flat), observation)
        reward = _per_env("rewards", rewards, batch).to(place)
        ended = _per_env("dones", dones, batch).to(place) > 0
        going_on = 1 - ended.float()
        if has_state:
            state = reset_where(ended, fresh, new_state)
    # No action is taken in the last step; it is there to bootstrap from.
    _, actions, _, _, logits, _ = steps[-1]
    no_action, no_logits = torch.zeros_like(actions), torch.zeros_like(logits)
    _check_mask(mask, logits)
    steps.append((observation, no_action, reward, going_on, no_logits, mask))
    *parts, masks = tree.stack(steps)
    return AgentRollout(*parts, agent_state=start_state, action_mask=masks), obs, state


def _as_mask(given: Any, device: torch.device) -> Tensor:
    """A copy, as with observations."""
    return _as_tensor("action_mask", given).to(device, torch.bool, copy=True)


def _check_mask(mask: Tensor | None, logits: Tensor) -> None:
    if mask is not None and mask.shape != logits.shape:
        raise DiscorlError(
            f"action_mask has shape {list(mask.shape)}, expected [B, A] = {list(logits.shape)}"
        )
    if mask is not None and not bool(mask.any(-1).all()):
        raise DiscorlError(
            f"action_mask allows no action in environment {int((~mask.any(-1)).nonzero()[0])}"
        )


def _sample(logits: Tensor, generator: torch.Generator | None) -> Tensor:
    """An action for each row. Gumbel noise makes argmax a sample."""
    device = generator.device if generator is not None else "cpu"
    uniform = torch.rand(logits.shape, generator=generator, device=device).to(logits.device)
    return (logits - torch.log(-torch.log(uniform.clamp_(min=1e-20)))).argmax(-1)


def _as_observation(obs: Any, device: torch.device, flat: bool) -> Any:
    """A copy as tensors: environments may write the next observation over this one."""
    if isinstance(obs, dict):
        return {key: _as_observation(x, device, flat) for key, x in obs.items()}
    if isinstance(obs, tuple):
        return tuple(_as_observation(x, device, flat) for x in obs)
    x = _as_tensor("obs", obs)
    if x.dim() == 0:
        raise DiscorlError("obs is a single number; it must be a batch of observations [B, ...]")
    if flat:
        x = x.reshape(len(x), -1).float()
    # Other kinds stay as they are: a uint8 image is a quarter of the memory in the replay.
    dtype = torch.float32 if x.dtype == torch.float64 else x.dtype
    return x.to(device, dtype, copy=True)


def _as_tensor(name: str, x: Any) -> Tensor:
    if isinstance(x, Tensor):
        return x.detach()
    try:
        return torch.as_tensor(np.asarray(x), device="cpu")
    except (TypeError, ValueError):
        raise DiscorlError(
            f"{name} is {x!r:.60}, which cannot become a tensor: use an array of numbers"
        ) from None


def _batch_of(observation: Any) -> int:
    """How many environments an observation covers."""
    sizes = {len(x) for x in tree.leaves(observation)}
    if len(sizes) != 1 or sizes == {0}:
        raise DiscorlError(
            f"obs must be a batch of observations [B, ...] with the same B in every part, at least "
            f"1, not B = {sorted(sizes)}"
        )
    return sizes.pop()


def _like(observation: Any, before: Any) -> Any:
    """The observation, if it is of the same kind as the previous one."""

    def kinds(tree_of_tensors: Any) -> list[str]:
        return [f"{x.dtype} {list(x.shape)}" for x in tree.leaves(tree_of_tensors)]

    if kinds(observation) != kinds(before):
        raise DiscorlError(
            f"step_fn returned observations of {', '.join(kinds(observation))}, but the previous "
            f"ones were {', '.join(kinds(before))}"
        )
    return observation


def _check_memory(state: Any, fresh: Any, batch: int) -> None:
    """Raise unless the state belongs to this agent and this number of environments."""
    if type(state) is not type(fresh) or len(tree.leaves(state)) != len(tree.leaves(fresh)):
        raise DiscorlError(
            f"state is a {type(state).__name__}, but the agent's memory is a "
            f"{type(fresh).__name__}: pass what the last call returned, or None to start"
        )
    check_state(state, batch)


def _checked(result: Any, has_masks: bool) -> tuple[Any, ...]:
    if has_masks and isinstance(result, tuple) and len(result) == 3:
        raise DiscorlError(
            "step_fn returned no action mask, although collect_rollout was given one: return it "
            "fourth, as in (observations, rewards, dones, action_mask)"
        )
    if not isinstance(result, tuple) or len(result) != 3 + has_masks:
        what = f"{len(result)} values" if isinstance(result, tuple) else type(result).__name__
        raise DiscorlError(
            f"step_fn returned {what}; it must return (observations, rewards, dones), where done "
            "means terminated or truncated"
        )
    return result


def _per_env(name: str, x: Any, batch: int) -> Tensor:
    """A copy, as with observations."""
    values = _as_tensor(name, x)
    if tuple(values.shape) != (batch,):
        raise DiscorlError(
            f"step_fn returned {name} of shape {list(values.shape)}, expected [B] = [{batch}], one "
            "for each environment"
        )
    return values.to(torch.float32, copy=True)


def _last_of(previous: Rollout | None, batch: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Reward and discount that arrived with the first observation."""
    if previous is None:
        zeros = torch.zeros(batch, device=device)
        return zeros, torch.ones_like(zeros)
    if previous.rewards.shape[1] != batch:
        raise DiscorlError(
            f"the previous rollout has {previous.rewards.shape[1]} environments, not {batch}"
        )
    return previous.rewards[-1], previous.discounts[-1]
