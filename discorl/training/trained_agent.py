"""From a run's folder back to the agent that it trained."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from discorl.agents.acting import Acting, begin, take_step
from discorl.agents.agent import agent_net
from discorl.envs.base import Env
from discorl.errors import DiscorlError
from discorl.nets.agent_net import AgentNet
from discorl.nets.net_config import NetConfig
from discorl.ops import native
from discorl.ops.masks import mask_logits
from discorl.rules.base import UpdateRule
from discorl.training.agent_files import AGENT, ENV, ENV_OF, read_agent, run_folder
from discorl.training.build import check_env_is_given
from discorl.training.config import TrainConfig
from discorl.training.rule_choice import choose_rule, read_config
from discorl.training.run_env import FROM_PYTHON, make_run_env, sample_env
from discorl.types import EnvSpec, Params

if TYPE_CHECKING:
    import gymnasium

    from discorl.deploy.policy import Policy, PolicyMemory


@dataclass(frozen=True, repr=False)
class LoadedAgent:
    """A trained agent, ready to act: in your own loop with ``predict``, or in ours."""

    folder: Path
    config: TrainConfig
    rule_name: str
    net: AgentNet
    device: torch.device
    file: Path = Path(AGENT)
    """What its parameters are from."""
    env_memory: Params = field(default_factory=dict)
    """What its environments had learnt, such as the scale of observations."""
    env: Any = None
    """The environment that replaces the one that ``config.task`` names, if any."""

    def __repr__(self) -> str:
        return f"<an agent for {self.config.task}, trained with {self.rule_name}: {self.file}>"

    @property
    def observation_space(self) -> gymnasium.Space:
        """Of what ``predict`` takes: as the environment shows it, a single frame if the agent
        stacks frames."""
        return self.policy.interface.observation_space

    @property
    def action_space(self) -> gymnasium.Space:
        """Of what ``predict`` returns."""
        return self.policy.interface.action_space

    def predict(
        self,
        observation: Any,
        memory: PolicyMemory | None = None,
        greedy: bool = True,
        *,
        episode_start: Any = None,
        generator: torch.Generator | None = None,
        action_mask: Any = None,
    ) -> tuple[Any, PolicyMemory | None]:
        """The action for an observation as the environment shows it, or for a batch of them.

        Everything that training did to observations and actions is inside: the layout of images,
        frame stacks, normalisation, Dicts and Tuples, one-hot numbers, bins of continuous actions.

        Args:
            observation: As ``observation_space`` describes it, or a batch with one more axis in
                front, as a vector environment returns it.
            memory: What the last call returned. None where episodes begin: the agent then
                remembers nothing. Agents without memory return None and ignore it.
            greedy: Take the likeliest action; otherwise sample from the policy.
            episode_start: For a batch, [B] bool: where episodes begin while others go on, as in a
                vector environment that resets itself. What these remember is forgotten.
            generator: Where samples come from, if not from torch's own.
            action_mask: [A], or [B, A] for a batch: True where an action is allowed. By default
                the entry 'action_mask' of Dict observations, if they have one.

        Returns:
            The action, or a batch of them, for ``env.step``; and the memory for the next call.
        """
        policy = self.policy
        arrays, is_single = policy.read(observation)
        batch = len(arrays[0])
        starts = torch.zeros(batch, dtype=torch.bool)
        if episode_start is not None:
            starts = torch.as_tensor(np.asarray(episode_start, bool)).reshape(-1)
            if len(starts) != batch:
                raise DiscorlError(
                    f"episode_start has {len(starts)} entries for {batch} observation(s)"
                )
        with torch.inference_mode(), self._precision():
            if memory is None:
                memory = policy.initial_memory(batch)
            logits, memory = policy(arrays, policy.check_memory(memory, batch), starts)
            if action_mask is None and isinstance(observation, dict):
                action_mask = observation.get("action_mask")
            numbers = self._choose(_masked(logits, action_mask), greedy, generator)
        actions = policy.interface.translate(numbers.cpu().numpy())
        return actions[0] if is_single else actions, memory or None

    def export(self, path: Path | str, masks: bool | None = None) -> Path:
        """Write the greedy policy to a file that needs nothing of this package.

        Everything that ``predict`` does is inside. A name that ends in .pt2 is for torch.export,
        one in .onnx for ONNX, which needs the extra 'onnx'. The file is compared with this agent
        before it is written.

        Args:
            path: The file to write.
            masks: Whether it takes action masks, and then always does. By default if the
                environment gives them: one is made and reset to find out. A ready one that was
                passed as ``env=`` is not reset, so say so yourself if its infos have masks.
        """
        from discorl import __version__
        from discorl.deploy.export import export_policy

        about = {"discorl": __version__, "task": self.config.task, "rule": self.rule_name}
        masks = self._has_masks() if masks is None else masks
        return export_policy(self.policy, path, about, masks)

    def _has_masks(self) -> bool:
        """Whether the environment says which actions are allowed."""
        import gymnasium

        from discorl.envs.gymnasium.masks import has_method, method_of_all, without_mask

        if without_mask(self.policy.interface.observation_space, "the agent")[1]:
            return True
        if isinstance(self.env, gymnasium.Env):  # it may be in use: nothing is reset to find out
            return has_method(self.env)
        if isinstance(self.env, gymnasium.vector.VectorEnv):
            return method_of_all(self.env) is not None
        with sample_env(self.folder, self.config, self.device, self.env) as env:
            return self.begin(env, seed=0).timestep.action_mask is not None

    @cached_property
    def policy(self) -> Policy:
        """All of ``predict`` but the choice, as one module."""
        from discorl.deploy.policy import Policy  # imported late: Gymnasium loads slowly
        from discorl.envs.gymnasium.interface import plain_interface

        with sample_env(self.folder, self.config, self.device, self.env) as env:
            self.prepare(env)
            interface = getattr(env, "interface", None) or plain_interface(env.spec)
        return Policy(self.net, interface)

    def make_env(self, num_envs: int) -> Env:
        """Copies of the environment that the agent was trained on."""
        env = make_run_env(self.folder, self.config, num_envs, self.device, self.env)
        return self.prepare(env)

    def prepare(self, env: Env) -> Env:
        """Give an environment what those of the run had learnt; it learns no more."""
        own: Any = env
        if hasattr(env, "state_dict") and own.state_dict() and not self.env_memory:
            raise DiscorlError(
                f"{self.folder} has no {ENV_OF.get(self.file.name, ENV)}, the scale of the "
                "observations that the agent was trained with: resume the run (discorl train "
                "--resume) until it ends or is stopped"
            )
        return learn_nothing(env, self.env_memory)

    def begin(self, env: Env, seed: int) -> Acting:
        """Before the first step."""
        rng = torch.Generator(device=self.device).manual_seed(seed)
        return begin(self.net, env, rng)

    @torch.inference_mode()
    def step(self, env: Env, at: Acting, greedy: bool) -> tuple[Tensor, Acting]:
        """Take the likeliest actions [B], or sample them from the agent's policy."""
        rng = at.rng
        with self._precision():
            actions, _, at = take_step(self.net, env, at, lambda x: self._choose(x, greedy, rng))
        return actions, at

    def _precision(self) -> AbstractContextManager[None]:
        """As in training."""
        return native.kernels(False, bf16=self.config.precision == "bf16")

    def _choose(self, logits: Tensor, greedy: bool, rng: torch.Generator | None) -> Tensor:
        """Numbers of actions [B]."""
        if not bool(logits.isfinite().all()):
            raise DiscorlError(
                f"the policy in {self.file} is NaN or infinite: learning went "
                "wrong, or the file is damaged; resume an earlier checkpoint, or train again"
            )
        if greedy:
            return logits.argmax(-1)
        return torch.multinomial(logits.softmax(-1), 1, generator=rng).squeeze(1)


def _masked(logits: Tensor, given: Any) -> Tensor:
    """The logits [B, A] of the actions that a mask [A] or [B, A] allows; all if there is none."""
    if given is None:
        return logits
    mask = torch.as_tensor(np.asarray(given, np.bool_), device=logits.device)
    mask = mask.unsqueeze(0) if mask.dim() == 1 else mask
    if mask.shape != logits.shape:
        raise DiscorlError(
            f"action_mask has shape {list(mask.shape)}; it must be {list(logits.shape)}, an entry "
            "for each action"
        )
    if not bool(mask.any(-1).all()):
        raise DiscorlError("action_mask allows no action: allow at least one in each row")
    return mask_logits(logits, mask)


def load_agent(
    path: PathLike[str] | str,
    device: torch.device | str = "cpu",
    best: bool = False,
    env: Any = None,
) -> LoadedAgent:
    """The agent of a run, ready to act.

    Args:
        path: The folder of a run, also while the run goes on; its agent.npz or best.npz; one of its
            checkpoints, or the folder of them, for the last one.
        device: Where the network runs.
        best: The best agent that ``eval_every`` has found, instead of the last one.
        env: For an agent that was trained on an environment from Python: that environment again,
            as ``train`` takes it, or the name of a task. A ready ``gymnasium.Env`` will do for
            ``predict`` alone.
    """
    path, device = Path(path), torch.device(device)
    folder = run_folder(path)
    config, content = read_config(folder)
    check_env_is_given(folder, content, env)
    saved = read_agent(path, best)
    with sample_env(folder, config, device, env) as made:
        spec = made.spec
    try:
        net = net_with_params(spec, choose_rule(config).rule, config.net, saved.params)
    except RuntimeError as e:
        reason = str(e).splitlines()[-1].strip()
        if env is not None:
            raise DiscorlError(
                f"{saved.file} does not fit this environment, with {_described(spec)}: give the "
                f"one that it was trained on, or one with the same spaces ({reason})"
            ) from None
        raise DiscorlError(
            f"{saved.file} does not fit the network that config.json describes: {reason} "
            f"{FROM_PYTHON}"
        ) from None
    name = str(content.get("rule", config.rule))
    net = net.to(device).eval()
    return LoadedAgent(folder, config, name, net, device, saved.file, saved.env_memory, env)


def _described(spec: EnvSpec) -> str:
    """What an agent sees and may do, in words."""
    named = spec.observations or {}
    shapes = {name: list(part.shape) for name, part in named.items()}
    return f"observations {shapes or list(spec.observation_shape)} and {spec.num_actions} actions"


def net_with_params(spec: EnvSpec, rule: UpdateRule, sizes: NetConfig, params: Params) -> AgentNet:
    """The network of an agent; raises ``RuntimeError`` if the parameters are another one's."""
    with torch.device("meta"):  # a structure only: config.json may ask for more than the file has
        net = agent_net(spec, rule, sizes)
    net.load_state_dict(_like(net.state_dict(), params), assign=True)
    return net


def _like(expected: Params, params: Params) -> Params:
    """Parameters in the types that the network has."""
    return {k: p.to(expected[k].dtype) if k in expected else p for k, p in params.items()}


def learn_nothing(env: Env, memory: Params) -> Env:
    """Give an environment what another has learnt, if anything; then it learns no more."""
    own: Any = env
    if memory and hasattr(env, "load_state_dict"):
        own.load_state_dict(memory)
    if hasattr(env, "freeze"):
        own.freeze()
    return env
