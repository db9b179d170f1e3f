"""A video of one episode, as a GIF or an MP4."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from discorl import tree
from discorl.atomic import write_atomically
from discorl.envs.base import Env
from discorl.envs.env_config import EnvConfig
from discorl.envs.registry import family
from discorl.errors import DiscorlError
from discorl.runs.imports import importing_for
from discorl.training.build import make_copies
from discorl.training.evaluate import MAX_EPISODE_STEPS
from discorl.training.pictures import Frame, draw_episode, enlarge
from discorl.training.trained_agent import LoadedAgent

FPS = 10
PAUSE = 1000
"""Milliseconds that a GIF rests on its last frame before it starts over."""
FORMATS = (".gif", ".mp4")


def check_video_path(path: Path | str) -> None:
    """Raise if nothing could be written there, before any episode is played."""
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise DiscorlError(f"a video's name must end in .gif or .mp4, not {path.name}")
    if not path.absolute().parent.is_dir():
        raise DiscorlError(f"cannot write {path.name}: there is no folder {path.absolute().parent}")
    if path.suffix.lower() == ".mp4":
        _imageio()


def record_episode(
    agent: LoadedAgent,
    seed: int = 0,
    greedy: bool = False,
    max_steps: int = MAX_EPISODE_STEPS,
) -> tuple[list[Frame], int]:
    """Frames of one episode, and how many to show per second.

    Gymnasium environments draw themselves; others are drawn from what the agent sees.
    """
    env, render, fps = _stage(agent)
    at = agent.begin(env, seed)
    frames: list[Frame] = []
    observations: list[Any] = []
    for _ in range(max_steps):
        if render is not None:
            frames.append(render())
        else:
            observations.append(tree.index(at.timestep.observation, 0))
        _, at = agent.step(env, at, greedy)
        if bool(at.timestep.ended[0]):  # what is shown now may be the next episode already
            break
    return (frames or draw_episode(observations, env.spec, agent.config.frame_stack)), fps


def write_video(path: Path | str, frames: list[Frame], fps: int) -> None:
    """Write frames in the format that the file's name asks for."""
    path = Path(path)
    check_video_path(path)
    if fps < 1:
        raise DiscorlError(f"a video needs at least 1 frame per second, not {fps}")
    encode = _gif if path.suffix.lower() == ".gif" else _mp4
    data = encode(frames, fps)
    try:
        write_atomically(path, data)
    except OSError as e:
        raise DiscorlError(f"cannot write {path}: {e.strerror}; choose another file") from None


def _stage(agent: LoadedAgent) -> tuple[Env, Callable[[], Frame] | None, int]:
    """One copy of the environment, how it draws itself if it does, and its frames per second."""
    named = agent.config.task if agent.env is None else agent.env
    if isinstance(named, str) and family(named) != "gym":
        return agent.make_env(1), None, FPS
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    import gymnasium

    try:
        drawn = _drawn(agent, named)
        if drawn is None:
            return agent.make_env(1), None, FPS
        drawn.reset()
        _pixels(drawn)
    except gymnasium.error.DependencyNotInstalled as e:
        raise DiscorlError(
            f"'{agent.config.task}' cannot draw itself: {e}; pip install 'discorl[video]' may help"
        ) from None
    except (gymnasium.error.Error, NotImplementedError, TypeError):
        return agent.make_env(1), None, FPS  # it cannot draw itself
    # As it is, and where it can be looked at.
    here = replace(agent.config.env, workers="sync", kwargs={}, wrappers=(), exact_resume=False)
    config = replace(agent.config, env=here)
    env = agent.prepare(make_copies(1, config, agent.device, lambda: drawn))
    return env, lambda: _pixels(drawn), int(drawn.metadata.get("render_fps") or FPS)


def _drawn(agent: LoadedAgent, named: Any) -> Any:
    """One environment that draws pictures, if it can; None if it is not one that could."""
    from discorl.envs.gymnasium.make import make_drawn

    if callable(named):
        return named()
    if not isinstance(named, str):
        return None
    if agent.env is not None:
        return make_drawn(named, EnvConfig())
    with importing_for(agent.folder, named, agent.config.env.wrappers):
        return make_drawn(named, agent.config.env)


def _pixels(env: Any) -> Frame:
    drawn = env.render()
    if not isinstance(drawn, np.ndarray) or drawn.ndim != 3:
        raise NotImplementedError
    return enlarge(drawn.astype(np.uint8)[..., :3])


def _gif(frames: list[Frame], fps: int) -> bytes:
    from PIL import Image

    # One palette for all frames, so that colours do not flicker.
    first = Image.fromarray(np.concatenate(frames[:: max(1, len(frames) // 8)]))
    palette = first.quantize(256, method=Image.Quantize.FASTOCTREE)
    images = [
        Image.fromarray(frame).quantize(palette=palette, dither=Image.Dither.NONE)
        for frame in frames
    ]
    buffer = io.BytesIO()
    shown = max(20, round(1000 / fps))  # viewers slow down whatever claims to be faster
    images[0].save(
        buffer,
        format="GIF",
        save_all=True,
        append_images=images[1:],
        duration=[shown] * (len(images) - 1) + [PAUSE],
        loop=0,
    )
    return buffer.getvalue()


def _mp4(frames: list[Frame], fps: int) -> bytes:
    return _imageio().imwrite(
        "<bytes>",
        np.stack(frames),
        extension=".mp4",
        plugin="FFMPEG",
        fps=fps,
        codec="libx264",
        macro_block_size=2,
    )


def _imageio() -> Any:
    try:
        import imageio.v3 as imageio
        import imageio_ffmpeg
    except ImportError:
        raise DiscorlError(
            "an MP4 needs a package that is not installed: pip install 'discorl[video]', or "
            "ask for a .gif"
        ) from None
    del imageio_ffmpeg
    return imageio
