"""From a run's folder back to the agent that it trained."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from discorl.agents.acting import Acting, begin, take_step
from discorl.agents.agent import agent_net
from discorl.envs.base import Env
from discorl.errors import DiscorlError
from discorl.nets.agent_net import AgentNet
from discorl.runs.files import load_params
from discorl.runs.imports import importing_for
from discorl.training.build import check_env_is_given, copies_of, without_names
from discorl.training.config import TrainConfig
from discorl.training.rule_choice import choose_rule, read_config
from discorl.types import Params


@dataclass(frozen=True)
class LoadedAgent:
    """A trained agent, ready to act."""

    folder: Path
    config: TrainConfig
    rule_name: str
    net: AgentNet
    device: torch.device
    env: Any = None
    """The environment that the user gave, in place of the one that the run names."""

    def make_env(self, num_envs: int) -> Env:
        """Copies of the environment that the agent was trained on, or of the one given since."""
        return make_run_env(self.folder, self.config, num_envs, self.device, self.env)

    def begin(self, env: Env, seed: int) -> Acting:
        """Before the first step."""
        rng = torch.Generator(device=self.device).manual_seed(seed)
        return begin(self.net, env, rng)

    @torch.inference_mode()
    def step(self, env: Env, at: Acting, greedy: bool) -> tuple[Tensor, Acting]:
        """Take the likeliest actions [B], or sample them from the agent's policy."""
        rng = at.rng

        def choose(logits: Tensor) -> Tensor:
            if not bool(logits.isfinite().all()):
                raise DiscorlError(
                    f"the policy in {self.folder / 'agent.npz'} is NaN or infinite: learning went "
                    "wrong, or the file is damaged; resume an earlier checkpoint, or train again"
                )
            if greedy:
                return logits.argmax(-1)
            return torch.multinomial(logits.softmax(-1), 1, generator=rng).squeeze(1)

        actions, _, at = take_step(self.net, env, at, choose)
        return actions, at


def load_agent(
    folder: Path | str, device: torch.device | str = "cpu", env: Any = None
) -> LoadedAgent:
    """Rebuild the agent of a run from config.json and agent.npz.

    ``env`` replaces the environment that the run names, as in ``train``; it may also be the name of
    a task. An agent that was trained on an environment from Python needs it again.
    """
    folder, device = Path(folder), torch.device(device)
    config, content = read_config(folder)
    check_env_is_given(folder, content, env)
    params = load_params(folder / "agent.npz")
    spec, rule = make_run_env(folder, config, 1, device, env).spec, choose_rule(config).rule
    with torch.device("meta"):  # a structure only: config.json may ask for more than the file has
        net = agent_net(spec, rule, config.net)
    try:
        net.load_state_dict(_like(net.state_dict(), params), assign=True)
    except RuntimeError as e:
        reason = str(e).splitlines()[-1].strip()
        raise DiscorlError(
            f"{folder / 'agent.npz'} does not fit the network that config.json describes: {reason}"
        ) from None
    return LoadedAgent(
        folder, config, str(content.get("rule", config.rule)), net.to(device).eval(), device, env
    )


def _like(expected: Params, params: Params) -> Params:
    """Parameters in the types that the network has."""
    return {k: p.to(expected[k].dtype) if k in expected else p for k, p in params.items()}


def make_run_env(
    folder: Path, config: TrainConfig, num_envs: int, device: torch.device, env: Any = None
) -> Env:
    """Copies of a run's environment, or of the user's ``env``, with the settings of the run."""
    config = replace(config, env=replace(config.env, exact_resume=False))  # nothing is resumed
    if env is None:
        with importing_for(folder, config.task, config.env.wrappers):
            made = copies_of(config, config.task, num_envs, device)
    else:
        made = copies_of(without_names(config), env, num_envs, device)
    return prepare_env(folder, made)


def prepare_env(folder: Path, env: Env) -> Env:
    """Give an environment what it had learnt in training, such as the scale of observations."""
    memory = folder / "env.npz"
    own: Any = env
    if memory.exists() and hasattr(env, "load_state_dict"):
        own.load_state_dict(load_params(memory))
    elif hasattr(env, "state_dict") and own.state_dict():
        raise DiscorlError(
            f"{folder} has no env.npz, the scale of the observations that the agent was trained "
            "with: resume the run (discorl train --resume) until it ends or is stopped"
        )
    if hasattr(env, "freeze"):
        own.freeze()
    return env
