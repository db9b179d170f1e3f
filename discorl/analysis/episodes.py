"""One episode of an agent, to be looked at, and pictures of what it saw."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from discorl import tree
from discorl.analysis.lives import Age, Life
from discorl.analysis.questions import episode_index
from discorl.training.pictures import draw_episode, most_like_a_picture
from discorl.types import Rollout


def shows_pictures(life: Life) -> bool:
    """Whether observations are images or boards."""
    observations = life.ages[-1].played.observations
    name = most_like_a_picture(observations)
    seen = observations[name] if name else observations
    return seen.dim() in (4, 5)  # time, trajectories, and two or three axes


def episode_to_show(age: Age) -> Rollout:
    """The whole episode with the most reward or loss, or if none is whole the longest piece.

    Of several the longest. Its last time step is the next episode's first, or what was seen last.
    """
    episode, rewards = episode_index(age.played).numpy(), age.played.rewards.abs().numpy()
    best, chosen = (False, -1.0, 0), (0, 0, 0)
    for b in range(episode.shape[1]):
        starts = np.flatnonzero(np.diff(episode[:, b], prepend=-1))
        for start, end in zip(starts, [*starts[1:], len(episode) - 1]):
            is_whole = age.played.discounts[start, b] == 0 and end < len(episode) - 1
            rank = (bool(is_whole), float(rewards[start + 1 : end + 1, b].sum()), int(end - start))
            if rank > best:
                best, chosen = rank, (int(start), int(end), b)
    start, end, b = chosen
    memory = age.played.memory  # at the first step; forgotten where an episode begins
    rest = replace(age.played, memory=None)
    shown = tree.map(lambda x: x[start : end + 1, b : b + 1], rest)
    return replace(shown, memory=tree.map(lambda x: x[:, b : b + 1], memory))


def evenly(num_steps: int, count: int) -> list[int]:
    """At most ``count`` steps from the first to the last."""
    return sorted({round(x) for x in np.linspace(0, num_steps - 1, count)})


def pictures(life: Life, rollout: Rollout, steps: Sequence[int]) -> list[str]:
    """What the first trajectory shows at each of these steps, as PNG files in base64."""
    from PIL import Image

    seen = [tree.map(lambda x, t=t: x[t, 0], rollout.observations) for t in steps]
    encoded = []
    for frame in draw_episode(seen, life.spec, life.num_stacked):
        buffer = io.BytesIO()
        Image.fromarray(frame).save(buffer, format="PNG")
        encoded.append(base64.b64encode(buffer.getvalue()).decode())
    return encoded
