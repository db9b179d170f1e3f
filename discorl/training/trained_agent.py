"""From a run's folder back to the agent that it trained."""

from __future__ import annotations

from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from discorl.agents.acting import Acting, begin, take_step
from discorl.agents.agent import agent_net
from discorl.envs.base import Env
from discorl.errors import DiscorlError
from discorl.nets.agent_net import AgentNet
from discorl.nets.net_config import NetConfig
from discorl.ops import native
from discorl.rules.base import UpdateRule
from discorl.runs.files import load_params
from discorl.training.build import check_env_is_given, make_copies
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
    env: Any = None
    """The environment that the user gave, in place of the one that the run names."""

    def make_env(self, num_envs: int) -> Env:
        """Copies of the environment that the agent was trained on, or of the one given since."""
        where = (self.folder, self.config, num_envs, self.device)
        return make_run_env(*where, ENV_OF[self.file], self.env)

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
    folder: PathLike[str] | str,
    device: torch.device | str = "cpu",
    best: bool = False,
    env: Any = None,
) -> LoadedAgent:
    """Rebuild the agent of a run from config.json and agent.npz, or its ``best`` from best.npz.

    ``env`` replaces the environment that the run names, as in ``train``; it may also be the name of
    a task. An agent that was trained on an environment from Python needs it again.
    """
    folder, device = Path(folder), torch.device(device)
    config, content = read_config(folder)
    check_env_is_given(folder, content, env)
    file = BEST if best else AGENT
    if best and not (folder / file).exists():
        raise DiscorlError(
            f"{folder} has no {file}: only runs that are evaluated as they train have one "
            "(--eval-every); play the agent of its end instead"
        )
    params = load_params(folder / file)
    spec = make_run_env(folder, config, 1, device, ENV_OF[file], env).spec
    try:
        net = net_with_params(spec, choose_rule(config).rule, config.net, params)
    except RuntimeError as e:
        reason = str(e).splitlines()[-1].strip()
        raise DiscorlError(
            f"{folder / file} does not fit the network that config.json describes: {reason}"
        ) from None
    name = str(content.get("rule", config.rule))
    return LoadedAgent(folder, config, name, net.to(device).eval(), device, file, env)


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
    folder: Path,
    config: TrainConfig,
    num_envs: int,
    device: torch.device,
    memory: str = ENV,
    env: Any = None,
) -> Env:
    """Copies of a run's environment, or of the user's, with the settings of the run and the file
    ``memory``."""
    config = replace(config, env=replace(config.env, exact_resume=False))  # nothing is resumed
    return prepare_env(folder, make_copies(num_envs, config, device, env, folder), memory)


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
    own: Any = env
    if memory:
        own.load_state_dict(memory)
    if hasattr(env, "freeze"):
        own.freeze()
    return env
