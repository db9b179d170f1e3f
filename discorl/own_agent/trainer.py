"""The trainer: everything between "I have an agent and an environment" and "it learns"."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from discorl import optim, tree
from discorl.agents.agent import adam_clip
from discorl.agents.replay import Replay
from discorl.errors import DiscorlError
from discorl.own_agent.checks import accepted, check_graph, not_finite
from discorl.own_agent.disco_torch import as_rollout, one_of, with_hyper_params
from discorl.own_agent.noise import noise_from
from discorl.own_agent.optimiser import check_same_kind, make_optimiser
from discorl.own_agent.state import fingerprint, replay_from_plain, replay_to_plain, to_plain
from discorl.own_agent.update_rule import (
    PREFIX,
    DiscoUpdateRule,
    exact_device,
    loss_logs,
    trainable_params,
    unchanged_buffers,
)
from discorl.rules.base import UpdateRule
from discorl.rules.store import DISCO103, LoadedRule
from discorl.runs.checkpoint import restore
from discorl.types import AgentState, Rollout, UpdateInfo

STATE_VERSION = 1


class DiscoTrainer:
    """Trains any agent with a discovered rule.

        trainer = discorl.DiscoTrainer(agent)
        for _ in range(1000):
            rollout, obs, state = discorl.collect_rollout(agent, step_fn, obs, state)
            logs = trainer.step(rollout)

    ``agent`` is your own module; see ``discorl/own_agent/contract.py`` for what it returns. Its
    weights are updated in place, so ``agent(obs)`` acts on what was just learnt. Parameters with
    ``requires_grad=False`` stay as they are. Layers that change buffers in forward, such as
    BatchNorm in training mode, are refused.

    The defaults are the reference's: a replay of 1024 trajectories, batches of 64 drawn with
    replacement, one update per call of ``step``, Adam with each element clipped afterwards.
    Nothing is learnt until the replay holds a full batch.

    ``rule`` is whatever ``DiscoUpdateRule`` takes, or a ``DiscoUpdateRule``; Disco103 is downloaded
    unless it is already on this machine. ``mask_episode_starts=False`` also learns from the first
    step of each episode, which the reference leaves out, and ``discount`` is what future rewards
    count; None keeps the rule's own setting. ``optimiser`` (or ``optimizer``) replaces the one made
    from ``lr`` and ``max_grad_value``: one of torch's that has the agent's parameters, or a
    ``discorl.optim.Transform``. Two trainers with the same ``seed`` behave identically.

    ``weights_path`` is disco-torch's name for a rule file, and ``hyper_params`` are settings of the
    rule, by the names that they have there.

    An update that would make the loss or the gradient NaN or infinite is skipped, with an error
    that says why; the agent stays as it was. If you catch it, you can continue, but what caused it
    stays in the replay until newer trajectories have replaced it.
    """

    def __init__(
        self,
        agent: nn.Module,
        *,
        rule: str | Path | LoadedRule | UpdateRule | DiscoUpdateRule = DISCO103,
        device: torch.device | str | None = None,
        lr: float | optim.Schedule = 0.01,
        replay_capacity: int = 1024,
        batch_size: int = 64,
        replay_ratio: int = 1,
        max_grad_value: float = 1.0,
        mask_episode_starts: bool | None = None,
        discount: float | None = None,
        optimiser: optim.Transform | torch.optim.Optimizer | None = None,
        seed: int = 0,
        weights_path: str | Path | None = None,
        hyper_params: Mapping[str, float] | None = None,
        optimizer: optim.Transform | torch.optim.Optimizer | None = None,
    ) -> None:
        if weights_path is not None:
            rule = one_of(rule if rule != DISCO103 else None, weights_path, "rule", "weights_path")
        _check_settings(lr, max_grad_value)
        _check_counts(replay_capacity, batch_size, replay_ratio, seed)
        params = trainable_params(agent)
        self.device = exact_device(device or next(iter(params.values())).device)
        if isinstance(rule, DiscoUpdateRule):
            rule = copy.copy(rule)
        else:
            rule = DiscoUpdateRule(rule, device=self.device)
        if mask_episode_starts is not None:
            rule.rule = replace(rule.rule, mask_episode_starts=mask_episode_starts)
        if hyper_params is not None:
            rule.rule = with_hyper_params(rule.rule, hyper_params)
        if discount is not None:
            returns = replace(rule.rule.returns, discount=discount)
            rule.rule = replace(rule.rule, returns=returns)
        self.agent = agent
        self.rule = rule
        self.batch_size = batch_size
        self.replay_ratio = replay_ratio
        """Updates per call of ``step``."""
        self.replay = Replay(replay_capacity)
        self.generator = torch.Generator().manual_seed(seed * 3)
        """For ``collect_rollout``; its state is saved with the trainer's."""
        self.grad_steps = 0
        """Updates made."""
        self.acting_steps = 0
        """Rollouts seen."""
        given = one_of(optimiser, optimizer, "optimiser", "optimizer")
        self._optimiser = make_optimiser(given, adam_clip(lr, max_grad_value), agent, params)
        self._rule_state = rule.init_state(agent)
        self._sample_rng = torch.Generator().manual_seed(seed * 3 + 2)
        self._noise_rng = torch.Generator().manual_seed(seed * 3 + 1)
        self._names = params.keys()
        self._is_probed = False
        self._last: tuple[UpdateInfo, Rollout] | None = None

    def step(self, rollout: Rollout | Mapping[str, Any]) -> dict[str, float]:
        """Put a rollout into the replay, then learn from ``replay_ratio`` batches drawn from it.

        Returns ``total_loss``, its parts (``pi_loss``, ``y_loss``, ``z_loss``, ``aux_loss``,
        ``q_loss``), ``gradient_norm`` and ``update_norm`` of the last update, and the counts
        ``grad_steps``, ``acting_steps``, ``buffer_size`` and ``num_grad_steps_this_call``. Before
        the first update the loss is NaN.

        ``rollout`` is what ``collect_rollout`` returned, a ``Rollout`` of your own, or one that is
        a dict of tensors as disco-torch has them.
        """
        before = self.replay.state_dict()["storage"]
        rollout = accepted(as_rollout(rollout), self.device, self.rule.dtype, like=before)
        self._probe(rollout)
        self.replay.add(rollout)
        self.acting_steps += 1
        logs, num_before = {"total_loss": math.nan}, self.grad_steps
        if len(self.replay) >= self.batch_size:
            for _ in range(self.replay_ratio):
                logs = self._learn(self.replay.sample(self.batch_size, self._sample_rng))
        return logs | {
            "grad_steps": self.grad_steps,
            "acting_steps": self.acting_steps,
            "buffer_size": len(self.replay),
            "num_grad_steps_this_call": self.grad_steps - num_before,
        }

    def update(self, rollout: Rollout | Mapping[str, Any]) -> dict[str, float]:
        """Learn once from this rollout, bypassing the replay, in case you have your own."""
        rollout = accepted(as_rollout(rollout), self.device, self.rule.dtype)
        self._probe(rollout)
        return self._learn(rollout) | {"grad_steps": self.grad_steps}

    def diagnostics(self) -> dict[str, float]:
        """Entropies, values and distances of the last update, by name; empty before the first."""
        if self._last is None:
            return {}
        info, rollout = self._last
        means = self.rule.rule.diagnostics(info.predictions, info.targets, rollout)
        return {name: float(x) for name, x in means.items()}

    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on, apart from your environment and the agent's memory.

        Only tensors, numbers and text in dicts and tuples, so that PyTorch loads it with
        ``weights_only=True``. As with modules, the tensors are the trainer's own: save or copy
        them before you continue training.
        """
        state = to_plain(
            {"version": STATE_VERSION, "rule": self._rule_id()}
            | self._parts()
            | {"replay": replay_to_plain(self.replay)}
        )
        return state | self._optimiser.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a saved state, bit for bit as if training had never stopped.

        The trainer must have been made with the same agent, rule and settings. If anything does
        not match, nothing is changed.
        """
        _check_saved(state, self._parts(), self._rule_id())
        check_same_kind(self._optimiser, state)
        saved = {name: state[name] for name in self._parts()}
        own = tree.map(lambda x: x.detach().clone() if isinstance(x, Tensor) else x, saved)
        restored = restore(self._parts(), own)
        replay = replay_from_plain(state["replay"], self.replay.capacity, self.device)

        self._optimiser.load_state_dict(state)
        self.agent.load_state_dict(restored["agent"])
        self._optimiser.state, self._rule_state = restored["optimiser"], restored["rule_state"]
        self.replay = replay
        for name, generator in self._rngs().items():
            generator.set_state(restored["rng"][name])
        self.grad_steps = restored["counters"]["grad_steps"]
        self.acting_steps = restored["counters"]["acting_steps"]
        self._last = None

    def _rule_id(self) -> dict[str, str]:
        return {"name": self.rule.name, "sha256": fingerprint(self.rule.params)}

    def _parts(self) -> dict[str, Any]:
        """What changes as the agent learns, apart from the replay."""
        return {
            "agent": dict(self.agent.state_dict()),
            "optimiser": self._optimiser.state,
            "rule_state": self._rule_state,
            "rng": {name: rng.get_state() for name, rng in self._rngs().items()},
            "counters": {"grad_steps": self.grad_steps, "acting_steps": self.acting_steps},
        }

    def _rngs(self) -> dict[str, torch.Generator]:
        return {"act": self.generator, "sample": self._sample_rng, "noise": self._noise_rng}

    def _learn(self, batch: Rollout) -> dict[str, float]:
        """One update; the agent changes only if all went well."""
        params = trainable_params(self.agent)
        if params.keys() != self._names:
            raise DiscorlError(
                "the agent's trainable parameters have changed since the trainer was made: "
                "make a new DiscoTrainer after freezing, unfreezing or adding layers"
            )
        state = AgentState(params, self._optimiser.state, self._rule_state)
        with noise_from(self._noise_rng, self.device):
            state, info = self.rule.update(self.agent, self._optimiser.transform, state, batch)
        logs = loss_logs(info)
        if not all(map(math.isfinite, logs.values())):
            raise DiscorlError(self._diagnosis(batch, logs))
        with torch.no_grad():
            logs["update_norm"] = self._optimiser.apply(params, state, info)
        if not math.isfinite(logs["update_norm"]):
            raise DiscorlError(self._diagnosis(batch, logs))
        self._rule_state = state.rule
        self._last = (info, batch)
        self.grad_steps += 1
        return logs

    def _probe(self, batch: Rollout) -> None:
        """Check the agent's output once, so that mistakes show now, not once the replay is full."""
        if self._is_probed:
            return
        self.rule.check_device(self.agent)
        with unchanged_buffers(self.agent), torch.enable_grad():
            heads = self._heads(batch)
        check_graph(heads)
        if name := not_finite(heads):
            raise DiscorlError(f"the agent's head '{name}' is NaN or infinite")
        self._is_probed = True

    def _diagnosis(self, batch: Rollout, logs: dict[str, float]) -> str:
        """Where a NaN came from, as far as one can see."""
        own = {name.removeprefix(PREFIX): p for name, p in trainable_params(self.agent).items()}
        if name := not_finite(own):
            return f"the agent's parameter '{name}' is NaN or infinite; the update was skipped"
        with torch.no_grad():
            heads = self._heads(batch)
        if name := not_finite(heads):
            return f"the agent's head '{name}' is NaN or infinite; the update was skipped"
        broken = next(name for name, x in logs.items() if not math.isfinite(x))
        rewards = batch.rewards.flatten()
        return (
            f"{broken} is {logs[broken]} after {self.grad_steps} updates, so this update was "
            "skipped: lower lr, or check the scale of observations and rewards (the most extreme "
            f"reward in its batch is {float(rewards[rewards.abs().argmax()]):.3g})"
        )

    def _heads(self, batch: Rollout) -> dict[str, Tensor]:
        with noise_from(0, self.device):
            return self.rule.net(self.agent, batch).heads_of(batch)[0]


def _check_settings(lr: float | optim.Schedule, max_grad_value: float) -> None:
    if not callable(lr) and not (isinstance(lr, float | int) and 0 < lr < math.inf):
        raise DiscorlError(f"lr must be a number above 0, not {lr!r}")
    if not isinstance(max_grad_value, float | int) or not max_grad_value > 0:
        raise DiscorlError(f"max_grad_value must be a number above 0, not {max_grad_value!r}")


def _check_counts(replay_capacity: int, batch_size: int, replay_ratio: int, seed: int) -> None:
    counts = {"replay_capacity": replay_capacity, "batch_size": batch_size}
    for name, x in (counts | {"replay_ratio": replay_ratio, "seed": seed}).items():
        if not isinstance(x, int):
            raise DiscorlError(f"{name} must be a whole number, not {x!r}")
    if abs(seed) >= 2**61:
        raise DiscorlError(f"seed must be between -2**61 and 2**61, not {seed}")
    if batch_size < 1 or replay_ratio < 1:
        raise DiscorlError(
            f"batch_size and replay_ratio must be at least 1, not {batch_size} and {replay_ratio}"
        )
    if replay_capacity < batch_size:
        raise DiscorlError(
            f"replay_capacity {replay_capacity} is below batch_size {batch_size}, so learning "
            "would never start: raise replay_capacity or lower batch_size"
        )


def _check_saved(state: Any, parts: dict[str, Any], rule: dict[str, str]) -> None:
    if not isinstance(state, dict) or "version" not in state:
        raise DiscorlError("this is not the state of a DiscoTrainer: it has no version")
    if state["version"] != STATE_VERSION:
        raise DiscorlError(
            f"the state has version {state['version']!r}, but this package reads version "
            f"{STATE_VERSION}"
        )
    if lacking := sorted({*parts, "rule", "replay"} - state.keys()):
        raise DiscorlError(f"the saved state is missing {', '.join(lacking)}")
    if state["rule"] != rule:
        saved = state["rule"].get("name") if isinstance(state["rule"], dict) else state["rule"]
        raise DiscorlError(
            f"the state was saved with the rule {saved!r}, but this trainer's rule has different "
            f"parameters ({rule['name']!r}): make the trainer with the same rule"
        )
