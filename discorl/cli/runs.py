"""``discorl compare`` and ``discorl evaluate``: what is done with finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console


def compare_runs(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    metric: Literal["auto", "return", "success"] = "auto",
    html: Path | None = Path("comparison.html"),
    json: Path | None = None,
    by_settings: bool = True,
    bootstrap: int = 10_000,
) -> None:
    """Compare runs: scores and curves of each rule on each task, with intervals over seeds.

    Args:
        runs: Run folders, or folders that hold them.
        metric: What to compare; auto takes the success rate where a task has one.
        html: The report to write, one page that opens without a network; None for no report.
        json: Write all numbers to this file.
        by_settings: Keep runs of a rule apart whose settings differ.
        bootstrap: Bootstrap samples for each interval.
    """
    from discorl.comparison.compare import compare
    from discorl.comparison.report import html_report
    from discorl.comparison.table import print_comparison
    from discorl.runs.files import write_json, write_text

    comparison = compare(runs, metric, by_settings, bootstrap)
    print_comparison(comparison, Console())
    if json is not None:
        write_json(json, comparison.as_dict())
        print(f"Numbers: {json}")
    if html is not None:
        write_text(html, html_report(comparison))
        print(f"Report: {html}")


def evaluate_run(
    run: tyro.conf.Positional[Path],
    episodes: int = 100,
    seeds: tuple[int, ...] = (0,),
    greedy: bool = False,
    num_envs: int = 16,
    max_steps: int = 27_000,
    device: str = "auto",
    json: Path | None = None,
    video: Path | None = None,
    fps: int | None = None,
) -> None:
    """Play whole episodes with a trained agent, without learning.

    Args:
        run: Folder of a run.
        episodes: Episodes for each seed.
        seeds: Seeds of the environment and of the agent's draws.
        greedy: Always take the likeliest action, instead of drawing from the policy.
        num_envs: Copies of the environment that are played at once.
        max_steps: Steps after which an episode is cut.
        device: cpu, cuda, mps, or auto for the fastest that is there.
        json: Write every episode's return and length to this file.
        video: Film one episode, with the first seed: a .gif, or an .mp4 with the extra 'video'.
        fps: Frames a second of the video; the environment's own, or 10, if not given.
    """
    from discorl.runs.device import choose_device
    from discorl.runs.files import write_json
    from discorl.training.evaluate import evaluate, print_evaluation
    from discorl.training.trained_agent import load_agent
    from discorl.training.video import check_video_path, record_episode, write_video

    if video is not None:
        check_video_path(video)
    agent = load_agent(run, choose_device(device))
    result = evaluate(agent, episodes, seeds, greedy, num_envs, max_steps)
    print_evaluation(result, Console())
    if json is not None:
        write_json(json, result.as_dict())
        print(f"Episodes: {json}")
    if video is not None:
        frames, own_fps = record_episode(agent, seeds[0], greedy, max_steps)
        write_video(video, frames, own_fps if fps is None else fps)
        print(f"Video: {video}")
