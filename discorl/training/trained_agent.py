"""From a run's folder back to the agent that it trained."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from discorl.agents.acting import Acting, begin, take_step
from discorl.agents.agent import agent_net
from discorl.envs.base import Env, set_timeout
from discorl.envs.registry import make_env
from discorl.errors import DiscorlError
from discorl.nets.agent_net import AgentNet
from discorl.nets.net_config import NetConfig
from discorl.ops import native
from discorl.rules.base import UpdateRule
from discorl.runs.files import load_params
from discorl.runs.imports import importing_for
from discorl.training.config import TrainConfig
from discorl.training.rule_choice import choose_rule, read_config
from discorl.types import EnvSpec, Params

AGENT, ENV = "agent.npz", "env.npz"
BEST, BEST_ENV = "best.npz", "best-env.npz"
ENV_OF = {AGENT: ENV, BEST: BEST_ENV}
"""What the environments knew when an agent was saved, by its file; most know nothing."""


@dataclass(frozen=True)
class LoadedAgent:
    """A trained agent, ready to act."""

    folder: Path
    config: TrainConfig
    rule_name: str
    net: AgentNet
    device: torch.device
    file: str = AGENT
    """What its parameters are from: the end of the run, or its best evaluation."""

    def make_env(self, num_envs: int) -> Env:
        """Copies of the environment that the agent was trained on."""
        return make_run_env(self.folder, self.config, num_envs, self.device, ENV_OF[self.file])

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
                    f"the policy in {self.folder / self.file} is NaN or infinite: learning went "
                    "wrong, or the file is damaged; resume an earlier checkpoint, or train again"
                )
            if greedy:
                return logits.argmax(-1)
            return torch.multinomial(logits.softmax(-1), 1, generator=rng).squeeze(1)

        with native.kernels(False, bf16=self.config.precision == "bf16"):  # as in training
            actions, _, at = take_step(self.net, env, at, choose)
        return actions, at


def load_agent(
    folder: PathLike[str] | str, device: torch.device | str = "cpu", best: bool = False
) -> LoadedAgent:
    """Rebuild the agent of a run from config.json and agent.npz, or its ``best`` from best.npz."""
    folder, device = Path(folder), torch.device(device)
    config, content = read_config(folder)
    file = BEST if best else AGENT
    if best and not (folder / file).exists():
        raise DiscorlError(
            f"{folder} has no {file}: only runs that are evaluated as they train have one "
            "(--eval-every); play the agent of its end instead"
        )
    params = load_params(folder / file)
    env = make_run_env(folder, config, 1, device, ENV_OF[file])
    try:
        net = net_with_params(env.spec, choose_rule(config).rule, config.net, params)
    except RuntimeError as e:
        reason = str(e).splitlines()[-1].strip()
        raise DiscorlError(
            f"{folder / file} does not fit the network that config.json describes: {reason}"
        ) from None
    name = str(content.get("rule", config.rule))
    return LoadedAgent(folder, config, name, net.to(device).eval(), device, file)


def net_with_params(spec: EnvSpec, rule: UpdateRule, sizes: NetConfig, params: Params) -> AgentNet:
    """The network of an agent; raises ``RuntimeError`` if the parameters are another one's."""
    with torch.device("meta"):  # a structure only: config.json may ask for more than the file has
        net = agent_net(spec, rule, sizes)
    net.load_state_dict(_like(net.state_dict(), params), assign=True)
    return net


def _like(expected: Params, params: Params) -> Params:
    """Parameters in the types that the network has."""
    return {k: p.to(expected[k].dtype) if k in expected else p for k, p in params.items()}


def make_run_env(
    folder: Path, config: TrainConfig, num_envs: int, device: torch.device, memory: str = ENV
) -> Env:
    """Copies of a run's environment, with the settings of the run and the file ``memory``."""
    with importing_for(folder, config.task):
        env = make_env(config.task, num_envs, device, config.env, config.frame_stack)
    set_timeout(env, config.timeout_minutes)
    return prepare_env(folder, env, memory)


def prepare_env(folder: Path, env: Env, memory: str = ENV) -> Env:
    """Give an environment what it had learnt in training, such as the scale of observations."""
    own: Any = env
    if (folder / memory).exists() and hasattr(env, "load_state_dict"):
        learn_nothing(env, load_params(folder / memory))
    elif hasattr(env, "state_dict") and own.state_dict():
        raise DiscorlError(
            f"{folder} has no {memory}, the scale of the observations that the agent was trained "
            "with: resume the run (discorl train --resume) until it ends or is stopped"
        )
    return learn_nothing(env, {})


def learn_nothing(env: Env, memory: dict[str, Any]) -> Env:
    """Give an environment what another has learnt, if anything; then it learns no more."""
    if memory:
        env.load_state_dict(memory)  # pyright: ignore[reportAttributeAccessIssue]
    if (normaliser := getattr(env, "normaliser", None)) is not None:
        normaliser.frozen = True
    return env
