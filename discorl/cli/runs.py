"""``discorl compare``, ``evaluate`` and ``export``: what is done with runs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console

from discorl.cli.first_use import ask_before_loading
from discorl.errors import DiscorlError
from discorl.printable import printable


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
        runs: Run folders, or folders of run folders.
        metric: What to compare; auto uses the success rate if a task has one.
        html: Where to write the report, one page that opens offline; None for no report.
        json: Write all the numbers to this file.
        by_settings: Keep runs of the same rule apart if their settings differ.
        bootstrap: How many bootstrap samples to draw for each interval.
    """
    from discorl.comparison.compare import compare
    from discorl.comparison.report import html_report
    from discorl.comparison.table import print_comparison
    from discorl.runs.files import write_json, write_text

    comparison = compare(runs, metric, by_settings, bootstrap)
    print_comparison(comparison, Console())
    if json is not None:
        write_json(json, comparison.as_dict())
        print(printable(f"Numbers: {json}"))
    if html is not None:
        write_text(html, html_report(comparison))
        print(printable(f"Report: {html}"))


def evaluate_run(
    run: tyro.conf.Positional[Path],
    best: bool = False,
    task: str | None = None,
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
        best: Play the best agent that --eval-every has found, instead of the last one.
        task: The environment, if it was given from Python, or another one for the agent to play: a
            task, such as MODULE:FUNCTION of yours.
        episodes: How many episodes to play for each seed.
        seeds: Seeds for the environment and for the agent's random choices.
        greedy: Always take the likeliest action, instead of sampling from the policy.
        num_envs: How many copies of the environment to play at once.
        max_steps: Cut an episode off after this many steps.
        device: cpu, cuda, mps, or auto for the fastest one available.
        json: Write every episode's return and length to this file.
        video: Film one episode, with the first seed, as a .gif, or with the extra 'video' an .mp4.
        fps: Frames per second of the video; by default the environment's own rate, or 10.
    """
    from discorl.runs.device import choose_device
    from discorl.runs.files import write_json
    from discorl.training.evaluate import evaluate, print_evaluation
    from discorl.training.trained_agent import load_agent
    from discorl.training.video import check_video_path, record_episode, write_video

    if video is not None:
        check_video_path(video)
    ask_before_loading(run)
    agent = load_agent(run, choose_device(device), best, env=task)
    result = evaluate(agent, episodes, seeds, greedy, num_envs, max_steps)
    print_evaluation(result, Console())
    if json is not None:
        write_json(json, result.as_dict())
        print(printable(f"Episodes: {json}"))
    if video is not None:
        frames, own_fps = record_episode(agent, seeds[0], greedy, max_steps)
        write_video(video, frames, own_fps if fps is None else fps)
        print(printable(f"Video: {video}"))


def export_run(
    run: tyro.conf.Positional[Path],
    format: Literal["pt2", "onnx"] | None = None,
    out: Path | None = None,
    best: bool = False,
    task: str | None = None,
    masks: bool | None = None,
) -> None:
    """Write a trained agent to a file that acts without discorl.

    The preparation of observations, the memory and the meaning of actions are inside. The file is
    compared with the agent before it is written; docs/deploy.md shows how to use it.

    Args:
        run: Folder of a run, or one of its files: best.npz, agent.npz or a checkpoint.
        format: pt2 for torch.export, or onnx, which needs the extra 'onnx'. By default as the name
            of --out ends, or pt2.
        out: The file to write; by default policy.pt2 or policy.onnx in the folder of the run.
        best: The best agent that --eval-every has found, instead of the last one.
        task: The environment, if it was given from Python: a task, such as MODULE:FUNCTION of
            yours.
        masks: Whether the file takes action masks. By default if the environment gives them.
    """
    from discorl.training.agent_files import run_folder
    from discorl.training.trained_agent import load_agent

    if out is None:
        out = run_folder(run) / f"policy.{format or 'pt2'}"
    elif format and out.suffix != f".{format}":
        raise DiscorlError(f"--format {format} needs a name that ends in .{format}, not {out.name}")
    ask_before_loading(run)
    print(printable(f"Policy: {load_agent(run, best=best, env=task).export(out, masks)}"))
