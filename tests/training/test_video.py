"""Videos, read back by what shows them."""

from __future__ import annotations

import builtins
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from PIL import Image

from discorl.errors import DiscorlError
from discorl.training.train import train
from discorl.training.trained_agent import LoadedAgent, load_agent
from discorl.training.video import FPS, PAUSE, check_video_path, record_episode, write_video
from tests.training.test_evaluate import config


class Lamp(gymnasium.Env):
    """Three steps of ever brighter pictures."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.time = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any):
        self.time += 1
        return np.zeros(1, np.float32), 1.0, self.time == 3, False, {}

    def render(self) -> Any:
        return np.full((33, 40, 3), 50 * self.time, np.uint8)


class Unseen(Lamp):
    """Cannot draw itself."""

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()


@pytest.fixture(scope="module", autouse=True)
def _registered():
    for name, entry in (("Lamp-v0", Lamp), ("Unseen-v0", Unseen)):
        gymnasium.register(name, entry_point=entry)  # pyright: ignore[reportArgumentType]
    yield
    for name in ("Lamp-v0", "Unseen-v0"):
        del gymnasium.registry[name]


def agent_of(tmp_path: Path, task: str, **changes: Any) -> LoadedAgent:
    return load_agent(train(config(tmp_path / "run", task=task, **changes)).folder)


def test_tensor_environments_are_drawn_from_what_the_agent_sees(tmp_path: Path) -> None:
    frames, fps = record_episode(agent_of(tmp_path, "catch:4x3"))
    assert (len(frames), fps) == (3, FPS)
    rows = [np.argwhere(frame[:, :, 0] > 200)[:, 0].min() for frame in frames]
    assert rows == [0, 80, 160], "the ball falls"
    same, _ = record_episode(agent_of(tmp_path / "again", "catch:4x3"))
    assert all(np.array_equal(a, b) for a, b in zip(frames, same, strict=True))


def test_gymnasium_environments_draw_themselves(tmp_path: Path) -> None:
    frames, fps = record_episode(agent_of(tmp_path, "gym:Lamp-v0"))
    assert fps == 7
    assert [int(frame[0, 0, 0]) for frame in frames] == [0, 50, 100], "not the next episode's"
    assert frames[0].shape == (33 * 8, 40 * 8, 3)


def test_one_that_was_trained_in_processes_draws_itself(tmp_path: Path) -> None:
    agent = agent_of(tmp_path, "gym:Lamp-v0")
    workers = replace(agent.config, env=replace(agent.config.env, workers="async"))
    frames, _ = record_episode(replace(agent, config=workers))
    assert [int(frame[0, 0, 0]) for frame in frames] == [0, 50, 100]


def test_those_that_cannot_are_drawn_all_the_same(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="render"):
        frames, fps = record_episode(agent_of(tmp_path, "gym:Unseen-v0"))
    assert (len(frames), fps) == (3, FPS)


def test_a_real_environment_draws_itself(tmp_path: Path) -> None:
    pytest.importorskip("pygame", reason="needs pygame-ce (extra video)")
    frames, fps = record_episode(agent_of(tmp_path, "gym:CartPole-v1"))
    assert fps == 50 and len(frames) > 5
    assert frames[0].shape == (400, 600, 3)
    assert not np.array_equal(frames[0], frames[-1])


def stripes(count: int = 4) -> list[np.ndarray]:
    """Frames with a stripe that moves."""
    frames = [np.zeros((32, 48, 3), np.uint8) for _ in range(count)]
    for i, frame in enumerate(frames):
        frame[:, 10 * i : 10 * i + 10, 1] = 255
    return frames


def test_gif(tmp_path: Path) -> None:
    path = tmp_path / "a.gif"
    write_video(path, stripes(), fps=20)
    with Image.open(path) as read:
        assert (read.n_frames, read.size) == (4, (48, 32))  # pyright: ignore
        for i, frame in enumerate(stripes()):
            read.seek(i)
            np.testing.assert_array_equal(np.array(read.convert("RGB")), frame)
            assert read.info["duration"] == (50 if i < 3 else PAUSE)
    assert [p.name for p in tmp_path.iterdir()] == ["a.gif"]


# imageio's reader, which only this test uses, leaves its pipes to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_mp4(tmp_path: Path) -> None:
    imageio = pytest.importorskip("imageio.v3", reason="needs imageio (extra video)")
    pytest.importorskip("imageio_ffmpeg", reason="needs imageio-ffmpeg (extra video)")
    path = tmp_path / "a.mp4"
    write_video(path, stripes(), fps=20)
    read = imageio.imread(path, plugin="FFMPEG")
    assert read.shape == (4, 32, 48, 3)
    difference = np.abs(read.astype(int) - np.stack(stripes()).astype(int))
    assert difference.mean() < 30, "a lossy codec, but the same pictures"
    assert imageio.immeta(path, plugin="FFMPEG")["fps"] == 20


def test_an_mp4_without_its_package_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("imageio"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(DiscorlError, match=r"discorl\[video\].*\.gif"):
        check_video_path(tmp_path / "a.mp4")
    check_video_path(tmp_path / "a.gif")


def test_bad_videos_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DiscorlError, match="1 frame per second"):
        write_video(tmp_path / "a.gif", stripes(), fps=0)
    (tmp_path / "b.gif").mkdir()
    with pytest.raises(DiscorlError, match="cannot write"):
        write_video(tmp_path / "b.gif", stripes(), fps=5)
    assert not (tmp_path / "a.gif").exists()
