"""Mistakes in a rollout, reported before they reach the learner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from discorl import tree
from discorl.errors import DiscorlError
from discorl.ops.masks import mask_logits
from discorl.own_agent.contract import check_state
from discorl.types import Rollout


def accepted(
    rollout: Any, device: torch.device, dtype: torch.dtype, like: Rollout | None = None
) -> Rollout:
    """The rollout, ready for the learner, if it is valid and shaped like earlier ones (``like``).

    ``dtype`` is what the rule computes in.
    """
    if torch.is_inference_mode_enabled():
        raise DiscorlError("learning needs gradients: call this outside torch.inference_mode()")
    if not isinstance(rollout, Rollout):
        raise DiscorlError(
            f"a rollout must be a discorl.Rollout, such as collect_rollout returns, not a "
            f"{type(rollout).__name__}"
        )
    num_steps = _check_shapes(rollout)
    if num_steps < 2:
        raise DiscorlError(
            f"a rollout needs at least 2 time steps (a transition), but this one has {num_steps}"
        )
    _check_types(rollout, device, dtype)
    _check_values(rollout)
    rollout = _masked(rollout)
    if like is not None:
        _check_like(rollout, like)
    check_state(tree.index(rollout.memory, 0), rollout.actions.shape[1])
    # Drop the graph that made it, which a replay would keep alive. Tensors made in inference mode
    # cannot take part in a gradient.
    return tree.map(lambda x: x.clone() if x.is_inference() else x.detach(), rollout)


def _check_shapes(rollout: Rollout) -> int:
    fields = _fields(rollout)
    if rollout.actions.dim() != 2:
        raise DiscorlError(
            f"rollout.actions has shape {list(rollout.actions.shape)}, expected [T, B]"
        )
    num_steps, batch = rollout.actions.shape
    if batch == 0:
        raise DiscorlError("the rollout is empty: rollout.actions has B = 0 trajectories")
    here = f"with T = {num_steps}, B = {batch} as in rollout.actions"
    for name, x, more in fields:
        has_rank = x.dim() >= 2 if more == ", ..." else x.dim() == (3 if more else 2)
        if not has_rank or tuple(x.shape[:2]) != (num_steps, batch):
            hint = ""
            if name in ("rewards", "discounts") and tuple(x.shape) == (num_steps - 1, batch):
                hint = f"; {name}[t] arrives with observations[t], so prepend one for t = 0"
            raise DiscorlError(
                f"rollout.{name} has shape {list(x.shape)}, expected [T, B{more}] {here}{hint}"
            )
    return num_steps


def _check_types(rollout: Rollout, device: torch.device, dtype: torch.dtype) -> None:
    for name, x, _ in _fields(rollout):
        if x.device != device:
            raise DiscorlError(
                f"rollout.{name} is on {x.device}, but the agent is on {device}: "
                f"move it with .to('{device}')"
            )
        if name in ("rewards", "discounts", "behaviour_logits") and x.dtype != dtype:
            wanted = str(dtype).removeprefix("torch.")
            raise DiscorlError(
                f"rollout.{name} is {str(x.dtype).removeprefix('torch.')}, but the rule computes "
                f"in {wanted}: call .to({dtype})"
            )
    actions = rollout.actions
    if actions.is_floating_point() or actions.dtype == torch.bool:
        raise DiscorlError(
            f"rollout.actions is {str(actions.dtype).removeprefix('torch.')}, expected int64: "
            "call .long()"
        )


def _check_values(rollout: Rollout) -> None:
    for name, x, _ in _fields(rollout):
        finite = x.isfinite()
        if not bool(finite.all()):
            t, b = (int(i) for i in (~finite).nonzero()[0][:2])
            raise DiscorlError(f"rollout.{name} is NaN or infinite, first at t = {t}, b = {b}")
    low, high = (float(x) for x in rollout.discounts.aminmax())
    if low < 0 or high > 1:
        raise DiscorlError(
            f"rollout.discounts contains {low if low < 0 else high:g}: it must be 0 at the first "
            "step of an episode and 1 elsewhere (the rule applies its own discount)"
        )
    num_actions = rollout.behaviour_logits.shape[-1]
    low, high = (int(x) for x in rollout.actions.aminmax())
    if low < 0 or high >= num_actions:
        raise DiscorlError(
            f"rollout.actions contains {low if low < 0 else high}, but behaviour_logits has "
            f"{num_actions} actions, numbered from 0"
        )


def _masked(rollout: Rollout) -> Rollout:
    """The rollout with its masks checked, and with the policy that they leave."""
    mask = rollout.action_mask
    if mask is None:
        return rollout
    shape = tuple(rollout.behaviour_logits.shape)
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or tuple(mask.shape) != shape:
        found = f"{mask.dtype} {list(mask.shape)}" if isinstance(mask, Tensor) else type(mask)
        raise DiscorlError(
            f"rollout.action_mask is {found}, expected torch.bool [T, B, A] = {list(shape)}, True "
            "where an action is allowed"
        )
    if mask.device != rollout.behaviour_logits.device:
        raise DiscorlError(
            f"rollout.action_mask is on {mask.device}: move it to the agent's device"
        )
    if not bool(mask.any(-1).all()):
        t, b = (int(i) for i in (~mask.any(-1)).nonzero()[0])
        raise DiscorlError(f"rollout.action_mask allows no action, first at t = {t}, b = {b}")
    # No action is taken in the last step.
    allowed = mask[:-1].gather(-1, rollout.actions[:-1].unsqueeze(-1).long()).squeeze(-1)
    if not bool(allowed.all()):
        t, b = (int(i) for i in (~allowed).nonzero()[0])
        raise DiscorlError(
            f"rollout.actions has an action that rollout.action_mask forbids, first at t = {t}, "
            f"b = {b}"
        )
    return replace(rollout, behaviour_logits=mask_logits(rollout.behaviour_logits, mask))


def _check_like(rollout: Rollout, like: Rollout) -> None:
    """All trajectories in a replay have the same length and kind of observation."""
    if (rollout.memory is None) != (like.memory is None):
        raise DiscorlError(
            "either all of a trainer's rollouts have an agent_state or none do: build them with "
            "discorl.AgentRollout(..., agent_state=...), or let collect_rollout do it"
        )
    if (rollout.action_mask is None) != (like.action_mask is None):
        raise DiscorlError("either all of a trainer's rollouts have an action_mask or none do")
    new, old = list(_fields(rollout)), list(_fields(like))
    if [name for name, _, _ in new] != [name for name, _, _ in old]:
        raise DiscorlError(
            "the rollout's observations have different parts from those of earlier rollouts: "
            f"{[n for n, _, _ in new]}, not {[n for n, _, _ in old]}"
        )
    for (name, x, _), (_, y, _) in zip(new, old, strict=True):
        # The replay keeps some of the other parts in smaller types.
        if name.startswith("observations") and x.dtype != y.dtype:
            raise DiscorlError(
                f"rollout.{name} is {x.dtype}, but it was {y.dtype} in earlier rollouts"
            )
        shape, before = [len(x), *x.shape[2:]], [len(y), *y.shape[2:]]
        if shape != before:
            raise DiscorlError(
                f"rollout.{name} has [T, ...] = {shape}, but it was {before} in earlier rollouts; "
                "all of a trainer's rollouts must have the same length and observations"
            )


def _fields(rollout: Rollout) -> list[tuple[str, Tensor, str]]:
    """Name, tensor, and what follows [T, B, for each part of a rollout."""
    fields = [(f"observations{path}", x, ", ...") for path, x in _parts(rollout.observations)]
    for name in ("rewards", "discounts", "behaviour_logits", "actions"):
        x = getattr(rollout, name)
        if not isinstance(x, Tensor):
            raise DiscorlError(
                f"rollout.{name} is a {type(x).__name__}, expected a tensor: use torch.as_tensor"
            )
        fields.append((name, x, ", A" if name == "behaviour_logits" else ""))
    return fields


def _parts(observations: Any, path: str = "") -> list[tuple[str, Tensor]]:
    """The tensors of an observation with their places in it."""
    if isinstance(observations, Tensor):
        return [(path, observations)]
    if isinstance(observations, dict):
        items = [(f"[{key!r}]", x) for key, x in observations.items()]
    elif isinstance(observations, tuple):
        items = [(f"[{i}]", x) for i, x in enumerate(observations)]
    else:
        raise DiscorlError(
            f"rollout.observations{path} is a {type(observations).__name__}; observations must be "
            "tensors, or dicts or tuples of them"
        )
    return [part for key, x in items for part in _parts(x, path + key)]


def not_finite(named: dict[str, Tensor]) -> str | None:
    """The first name whose tensor contains NaN or infinity."""
    return next((name for name, x in named.items() if not tree.is_finite(x)), None)


def check_graph(heads: Mapping[str, Tensor]) -> None:
    """Raise if nothing in the agent's output depends on its parameters."""
    if not any(x.requires_grad for x in heads.values()):
        raise DiscorlError(
            "the agent's heads carry no gradient: its forward must not use detach() or no_grad()"
        )
