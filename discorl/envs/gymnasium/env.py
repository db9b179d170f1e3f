"""A Gymnasium vector environment as an environment on tensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from torch import Tensor

from discorl import tree
from discorl.envs.env_config import EnvConfig
from discorl.envs.failures import one_line
from discorl.envs.gymnasium.actions import action_map
from discorl.envs.gymnasium.exits import PASS, call_without_exit
from discorl.envs.gymnasium.interface import Interface
from discorl.envs.gymnasium.masks import METHOD, Masks, method_of_all, without_mask
from discorl.envs.gymnasium.normalise import REWARD, ObservationNormaliser, RewardNormaliser
from discorl.envs.gymnasium.spaces import Leaf, observation_leaves
from discorl.envs.gymnasium.vector import close_vector
from discorl.envs.gymnasium.workers import ReportingAsyncVectorEnv, dead_worker
from discorl.errors import DiscorlError, EnvFailure
from discorl.types import EnvSpec, Observation, TimeStep


class GymnasiumEnv:
    """Copies of a Gymnasium environment, with either way of resetting (see ``TimeStep``).

    A vector environment that does not reset itself is reset in the step that ends an episode.
    The state that steps hand through says which copies are about to waste a step on resetting.
    """

    def __init__(
        self,
        envs: VectorEnv,
        device: torch.device | str = "cpu",
        *,
        name: str = "the environment",
        options: EnvConfig | None = None,
        autoreset: AutoresetMode | None = None,
        owned: bool = False,
        num_agents: int = 1,
    ) -> None:
        """``autoreset`` is for vector environments that do not say how they reset themselves;
        ``owned`` ones are closed with this object. ``num_agents`` share the copies, the first
        agent the first ones, and each has observation statistics of its own."""
        self._envs = envs
        self._name = name
        self._owned = owned
        self._options = options or EnvConfig()
        self._autoreset = autoreset or _autoreset_mode(envs, name)
        self.num_envs = int(envs.num_envs)
        self.device = torch.device(device)

        layout = self._options.image_layout
        space, has_masks = without_mask(envs.single_observation_space, name)
        self._leaves = observation_leaves(space, name, layout)
        self._is_single = not self._leaves[0].path
        self._actions = action_map(envs.single_action_space, name, self._options.action_bins)
        # Those that we make ourselves say everything in their infos.
        asks = None if owned or has_masks else method_of_all(envs)
        ask = partial(self._guarded, f"say its {METHOD}", asks) if asks else None
        self._masks = Masks(name, self._actions, self.num_envs, has_masks, ask)
        specs = {leaf.name: leaf.spec for leaf in self._leaves}
        num_actions = self._actions.num_actions
        self.spec = EnvSpec((), num_actions, observations=specs)
        if self._is_single:
            one = specs[""]
            kind = {"is_image": one.is_image, "observation_dtype": one.dtype}
            self.spec = EnvSpec(one.shape, num_actions, **kind)
        wanted = self._options.normalize_observations
        self.normaliser = ObservationNormaliser(
            _vectors(self._leaves) if wanted else {}, num_agents
        )
        self._rewards = None
        if self._options.normalize_rewards:
            self._rewards = RewardNormaliser(self.num_envs, num_agents)
        self._warned = False

    @property
    def interface(self) -> Interface:
        """What an agent that was trained here sees and does, in the environment's own terms."""
        return Interface(
            self._envs.single_observation_space,
            self._envs.single_action_space,
            tuple(self._leaves),
            self._actions.translate,
            getattr(self._envs, "frame_stack", None),
            self.normaliser.scales(),
        )

    def reset(self, generator: torch.Generator) -> tuple[np.ndarray | None, TimeStep]:
        seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
        shown, info = self._call("reset", seed=seed)
        if self._rewards:
            self._rewards.begin()
        zeros = torch.zeros(self.num_envs, device=self.device)
        wastes_steps = self._autoreset == AutoresetMode.NEXT_STEP
        timestep = TimeStep(
            self._observe(shown),
            zeros,
            torch.ones_like(zeros),
            is_dead=zeros.bool() if wastes_steps else None,
            raw_reward=zeros if self._changes_rewards else None,
            action_mask=self._optional(self._masks.begin(shown, info)),
        )
        return np.zeros(self.num_envs, np.bool_) if wastes_steps else None, timestep

    def step(
        self, state: np.ndarray | None, actions: Tensor, generator: torch.Generator
    ) -> tuple[np.ndarray | None, TimeStep]:
        del generator
        own_actions = self._actions.translate(actions.cpu().numpy())
        shown, reward, terminated, truncated, info = self._call("step", own_actions)
        truncated = np.logical_and(truncated, np.logical_not(terminated))
        ended = np.logical_or(terminated, truncated)
        if state is not None:  # the step after an end only reset: nothing in it is experience
            reward = np.where(state, 0, reward)
            truncated, ended = truncated & ~state, ended & ~state

        observation = self._observe(shown)
        resets_now = self._autoreset == AutoresetMode.SAME_STEP
        mask = self._masks.read(shown, info, None if resets_now else ended)
        final = final_mask = None
        if truncated.any():
            final = self._final(observation, info, truncated)
            final_mask = self._masks.final(info, truncated) if resets_now else mask
        if self._autoreset == AutoresetMode.DISABLED and ended.any():
            shown, info = self._call("reset", options={"reset_mask": ended})
            observation = self._observe(shown, counted=False)
            begun = self._masks.read(shown, info, ~ended)
            if mask is not None and begun is not None:
                mask = np.where(ended[:, None], begun, mask)

        starts = ended if state is None else ended | state
        raw = self._tensor(np.asarray(reward, np.float32))
        timestep = TimeStep(
            observation,
            self._learnt_from(raw, state, ended),
            self._tensor(~starts).float(),
            is_dead=None if state is None else self._tensor(ended),
            truncated=self._tensor(truncated) if truncated.any() else None,
            final_observation=final,
            raw_reward=raw if self._changes_rewards else None,
            action_mask=self._optional(mask),
            final_action_mask=self._optional(final_mask),
        )
        return None if state is None else ended, timestep

    @property
    def can_restart(self) -> bool:
        """Whether some copies can begin an episode while the others play on."""
        is_gymnasiums = isinstance(self._envs.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        return is_gymnasiums or self._autoreset == AutoresetMode.DISABLED

    def restart(
        self,
        state: np.ndarray | None,
        timestep: TimeStep,
        copies: Tensor,
        generator: torch.Generator,
    ) -> tuple[np.ndarray | None, TimeStep]:
        """Begin in ``copies`` [B] bool; the others stay as they are."""
        begun = copies.cpu().numpy()
        seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
        shown, info = self._call("reset", seed=seed, options={"reset_mask": begun.copy()})
        # The others are not counted again, nor are they shown with other statistics than before.
        fresh = self._observe(shown, counted=begun, rows=begun)
        if self._rewards:
            self._rewards.begin(begun)
        raw, mask = timestep.raw_reward, self._optional(self._masks.read(shown, info, ~begun))
        return None if state is None else state & ~begun, TimeStep(
            tree.where(copies, fresh, timestep.observation),
            timestep.reward.masked_fill(copies, 0.0),
            timestep.discount.masked_fill(copies, 1.0),
            is_dead=None if timestep.is_dead is None else timestep.is_dead & ~copies,
            raw_reward=None if raw is None else raw.masked_fill(copies, 0.0),
            action_mask=tree.where(copies, mask, timestep.action_mask),
        )

    def forget(self, agents: np.ndarray) -> None:
        """Start the statistics of some agents, [P] bool, from nothing."""
        self.normaliser.forget(agents)
        if self._rewards:
            self._rewards.forget(agents)

    def freeze(self) -> None:
        """From now on nothing is learnt about observations and rewards, as in evaluation."""
        self.normaliser.frozen = True
        if self._rewards:
            self._rewards.frozen = True

    def state_dict(self) -> dict[str, Tensor]:
        """What an agent needs of this environment besides its parameters; mostly nothing."""
        rewards = self._rewards.state_dict() if self._rewards else {}
        return self.normaliser.state_dict() | rewards

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Resume from what ``state_dict`` returned."""
        rewards = {}
        if self._rewards:
            rewards = {k: x for k, x in state.items() if k.startswith(REWARD)}
            self._rewards.load_state_dict(rewards)
        self.normaliser.load_state_dict({k: x for k, x in state.items() if k not in rewards})

    def recording(self) -> list[dict[str, Any]] | None:
        """The episodes that are being played, if ``exact_resume`` is on: see ``Recorded``."""
        return list(self._call("call", "recording")) if self._options.exact_resume else None

    def replay(self, recording: list[dict[str, Any]]) -> str:
        """Play episodes again that were recorded; says what went differently, or nothing."""
        if len(recording) != self.num_envs:
            return f"there are {self.num_envs} environments, not {len(recording)}"
        return next(filter(None, self._call("call", "replay", recording)), "")

    def close(self) -> None:
        """Close the environments, unless the caller made them."""
        if not self._owned or self._envs.closed:
            return
        try:
            call_without_exit(close_vector, self._envs)
        except KeyboardInterrupt:
            raise
        except BaseException as e:
            said = e if isinstance(e, DiscorlError) else f"it failed to close: {one_line(e)}"
            warnings.warn(f"{self._name}: {said}", stacklevel=2)

    def set_timeout(self, minutes: float) -> None:
        """How long to wait for the answer of an environment that has a process of its own."""
        if isinstance(self._envs.unwrapped, ReportingAsyncVectorEnv):
            self._envs.unwrapped.timeout_minutes = minutes

    @property
    def _changes_rewards(self) -> bool:
        is_scaled = self._options.reward_scale != 1 or self._options.reward_clip is not None
        return is_scaled or self._rewards is not None

    def _learnt_from(self, raw: Tensor, dead: np.ndarray | None, ended: np.ndarray) -> Tensor:
        """The reward that the agent is trained on; steps that were ``dead`` only reset."""
        reward = raw
        if self._rewards:
            counted = np.ones(self.num_envs, bool) if dead is None else ~dead
            reward = self._tensor(self._rewards(raw.cpu().numpy(), counted, ended))
        reward = reward * self._options.reward_scale if self._options.reward_scale != 1 else reward
        clip = self._options.reward_clip
        return reward if clip is None else reward.clamp(-clip, clip)

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        return self._guarded(method, getattr(self._envs, method), *args, **kwargs)

    def _guarded(self, what: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call something of the vector environment's; a failure becomes a line that says where."""
        try:
            return call_without_exit(function, *args, **kwargs)
        except PASS:
            raise
        except BaseException as e:
            died = dead_worker(self._envs) if isinstance(e, (EOFError, OSError)) else None
            if died:
                raise EnvFailure(f"{died} while {self._name} was in {what}") from None
            raise EnvFailure(f"{self._name} failed to {what}: {one_line(e)}") from e

    def _observe(
        self,
        shown: Any,
        *,
        counted: np.ndarray | bool = True,
        rows: np.ndarray | None = None,
    ) -> Observation:
        """The tensors of a batch of observations; the normaliser may count all or some of them.

        ``rows`` says which of the batch matter; by default all do.
        """
        return self._tensors([leaf.find(shown) for leaf in self._leaves], counted, rows)

    def _tensors(
        self,
        arrays: list[np.ndarray],
        counted: np.ndarray | bool,
        rows: np.ndarray | None = None,
    ) -> Observation:
        tensors = {}
        for leaf, array in zip(self._leaves, arrays, strict=True):
            if array.shape != (self.num_envs, *leaf.shape):
                leaf.check(array.shape[1:], self._name)
                raise EnvFailure(
                    f"{self._name} returned {len(array)} observations, not {self.num_envs}"
                )
            array = leaf.convert(array)
            self.normaliser.check(leaf.name, array, rows)
            if counted is not False:
                self.normaliser.observe(leaf.name, array, counted)
            tensors[leaf.name] = self._tensor(self.normaliser(leaf.name, array))
        return tensors[""] if self._is_single else tensors

    def _final(
        self, observation: Observation, info: dict[str, Any], truncated: np.ndarray
    ) -> Observation | None:
        """The last observations of the episodes that were cut off; other rows do not matter."""
        if self._autoreset != AutoresetMode.SAME_STEP:
            return observation
        final = info.get("final_obs")
        if final is None:
            if not self._warned:
                warnings.warn(
                    f"{self._name} does not return the last observation of an episode that is cut "
                    "off, so time limits count as real ends",
                    stacklevel=2,
                )
            self._warned = True
            return None
        if not (isinstance(final, np.ndarray) and final.dtype == object):
            return self._observe(final, counted=False, rows=truncated)
        first = final[int(truncated.argmax())]
        rows = [row if cut else first for row, cut in zip(final, truncated, strict=True)]
        return self._tensors([leaf.stack(rows, self._name) for leaf in self._leaves], counted=False)

    def _optional(self, array: np.ndarray | None) -> Tensor | None:
        return None if array is None else self._tensor(array)

    def _tensor(self, array: np.ndarray) -> Tensor:
        """A copy: the environment may write its next step into the same array."""
        return torch.tensor(array, device=self.device)


def _vectors(leaves: list[Leaf]) -> dict[str, int]:
    """Names and sizes of what can be normalised.

    NetHack's ``blstats`` say where on its ``glyphs`` the player is: they are read as they are.
    """
    vectors = {leaf.name: leaf.shape[0] for leaf in leaves if leaf.is_vector}
    if any(leaf.name == "glyphs" for leaf in leaves):
        vectors.pop("blstats", None)
    return vectors


def _autoreset_mode(envs: VectorEnv, name: str) -> AutoresetMode:
    mode = (envs.metadata or {}).get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError:
        raise DiscorlError(
            f"{name} does not declare how it resets: set its metadata['autoreset_mode'] to a "
            "gymnasium.vector.AutoresetMode, or pass GymnasiumEnv(..., autoreset=...)"
        ) from None
