"""The whole analysis of a rule: agents, figures, numbers and a page, resumable by part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from rich.console import Console

from discorl.analysis.attention import attention
from discorl.analysis.bootstrapping import bootstrapping
from discorl.analysis.confidence import confidence
from discorl.analysis.controls import control_agents, write_random_rules
from discorl.analysis.formula import formula
from discorl.analysis.information import information
from discorl.analysis.learning import learning
from discorl.analysis.lifetime import lifetime
from discorl.analysis.lives import Life, read_life
from discorl.analysis.reliance import reliance
from discorl.analysis.response import response
from discorl.analysis.results import NotApplicable, Result
from discorl.analysis.retraining import retraining
from discorl.analysis.sections import add_section, begun, report
from discorl.analysis.workers import Job, Tick, results, run_to_end, shown_progress
from discorl.bounds import MAX_COUNT, check_between
from discorl.errors import DiscorlError
from discorl.rules.built_in import ACTOR_CRITIC, POLICY_GRADIENT
from discorl.runs.checkpoint import CheckpointConfig, CheckpointFolder
from discorl.runs.config_file import kind_of, read_config_file
from discorl.runs.files import write_json
from discorl.runs.progress import RunProgress
from discorl.runs.terminal import say
from discorl.training.config import TrainConfig
from discorl.training.presets import for_run
from discorl.training.rule_choice import RuleChoice, choose_rule, read_config, resolved_rule
from discorl.training.train import Training

NUM_AGES = 4
"""Checkpoints of each agent; it is also seen newborn."""
MAX_STEPS, MAX_UPDATES = 400, 1000
"""Of each agent, if a task's own preset has more and the user says nothing."""
MAX_BATCH = 16
"""Trajectories in an update. What a rule teaches depends on the number of updates more than on the
size of their batches: Disco103 learns catch in as many updates of 16 trajectories as of 64."""
PART = 100
"""An analysis counts as much as so many training steps in the progress bar."""
LONGEST_FIRST = ("retraining", "formula", "information", "bootstrapping")
"""So that no process works on alone at the end."""


@dataclass(frozen=True)
class Analysis:
    """One of the analyses."""

    title: str
    about: str
    function: Callable[..., Result]
    """Of the lives of the rule's agents and, if it takes them, of control agents by name."""
    has_controls: bool = False
    """Whether it looks at agents that learnt by other rules, too."""


ANALYSES = {
    "learning": Analysis(
        "Learning",
        "What the agents have learnt that the rule is asked about. Those that have learnt nothing "
        "show a rule at work on beginners, and no more.",
        learning,
        has_controls=True,
    ),
    "bootstrapping": Analysis(
        "Bootstrapping",
        "An input of the rule is shifted k steps ahead: how far do the targets of now move? A rule "
        "that builds on its own predictions responds to z and y of later steps (Fig. 4d of the "
        "paper).",
        bootstrapping,
    ),
    "response": Analysis(
        "Response",
        "How the rule moves its agents: what pi-hat does to the action that was taken, and how far "
        "y-hat and z-hat are from y and z, against what the rule saw at that step.",
        response,
    ),
    "reliance": Analysis(
        "Reliance",
        "The rule is asked again with one of its inputs gone, or taken from another trajectory: "
        "how far do its targets move (Fig. 4e of the paper)? 'All of them' shows how far targets "
        "of different trajectories lie apart: an input that moves them as far is all that matters.",
        reliance,
    ),
    "retraining": Analysis(
        "Retraining",
        "Fresh agents are trained by a rule that never sees an input, or sees that of another "
        "trajectory: what does it cost them (Fig. 4e of the paper)? Their values learn from true "
        "rewards all the same.",
        retraining,
    ),
    "formula": Analysis(
        "Formula",
        "How much of pi-hat is a short sum? Log-probabilities are moved by named inputs, or by "
        "products of two, one more at a time; then agents are trained by the sum alone.",
        formula,
    ),
    "confidence": Analysis(
        "Confidence",
        "How sure y, z, the policy and the values are (their negative entropy) as the agents play: "
        "averages around rewards, ends of episodes and sudden decisions of the policy, beside what "
        "moments at random show (Fig. 4a of the paper).",
        confidence,
    ),
    "attention": Analysis(
        "Attention",
        "Where in what an agent sees its predictions come from: the size of the gradient of y, z, "
        "policy and value at each cell, smoothed, beside networks that have learnt nothing "
        "(Fig. 4b of the paper). White dots mark cells that have something.",
        attention,
        has_controls=True,
    ),
    "information": Analysis(
        "Information",
        "What small networks (probes) can read from each prediction about the agent's future, "
        "tested on trajectories that they were not trained on (Fig. 4c of the paper). What a "
        "newborn network tells as well is in what the agent sees, and no merit of the rule.",
        information,
        has_controls=True,
    ),
    "lifetime": Analysis(
        "Lifetime",
        "What the rule remembers of an agent's life: the state of its lifetime network as training "
        "goes on, how large its steps are, and how far the targets move if the memory is that of "
        "a newborn agent, or of another one.",
        lifetime,
    ),
}
"""All that there are, in the order of the page."""


@dataclass(frozen=True)
class Analysed:
    """Where the results are, and whether all of them are there."""

    folder: Path
    interrupted: bool = False


def analyse(
    subject: str,
    tasks: Sequence[str] = (),
    only: Sequence[str] = (),
    out: Path | None = None,
    seeds: int = 3,
    steps: int | None = None,
    console: Console | None = None,
    workers: int = 1,
) -> Analysed:
    """Analyse a rule, or the rule and the agent of a run; ``discorl analyse`` says what is what.

    What ``out`` holds already is not computed again. With several ``workers``, agents are trained
    and analyses made in as many processes, with one thread each; the numbers are the same.
    """
    check_between(1, MAX_COUNT, "seeds", seeds)
    if unknown := [name for name in only if name not in ANALYSES]:
        raise DiscorlError(
            f"no analysis is called '{unknown[0]}': --only takes {', '.join(ANALYSES)}"
        )
    console = console or Console()
    if Path(subject).is_dir():
        work = _of_run(Path(subject), tasks, out)
    else:
        work = _of_rule(subject, tasks or ("catch",), seeds, steps, out)
    names = [name for name in ANALYSES if not only or name in only]
    content = _begun(work)
    say(console, f"Analysing {work.name}, into {work.folder}")
    is_whole = _work(work, names, only, content, console, workers)
    report(work.folder, content, console)
    if not is_whole:
        say(console, "Stopped; the same command continues")
    return Analysed(work.folder, not is_whole)


@dataclass(frozen=True)
class _Work:
    """What is to be analysed."""

    name: str
    folder: Path
    settings: dict[str, Any]
    """What the results depend on."""
    lead: str
    agents: dict[str, list[TrainConfig]]
    """Runs for each task, by what they are or will be made with."""
    choice: RuleChoice
    controls: dict[str, dict[str, list[TrainConfig]]] = field(default_factory=dict)
    """Runs by other rules for each task, by the name of the control; those of a run have none."""
    is_trained: bool = False


def _of_run(folder: Path, tasks: Sequence[str], out: Path | None) -> _Work:
    if kind_of(read_config_file(folder)) == "discover":
        raise DiscorlError(f"{folder} is a discovery: analyse its rule, {folder / 'rule.npz'}")
    config, content = read_config(folder)
    if tasks:
        raise DiscorlError(f"{folder} has a task, {config.task}: leave out --task")
    choice = choose_rule(config)
    _check_kind(choice.name)
    steps = CheckpointFolder(folder / "checkpoints").steps()
    rule = _published(content["resolved_rule"])
    run_of = {"run": folder.absolute().name, "task": config.task, "seed": config.seed}
    settings = run_of | {"rule": rule, "steps": steps}
    lead = f"One agent, seed {config.seed}: the checkpoints of {folder}."
    out = out or Path("analysis") / folder.name
    agents = {config.task: [replace(config, out=folder)]}
    return _Work(choice.name, out, settings, lead, agents, choice, is_trained=True)


def _of_rule(
    rule: str, tasks: Sequence[str], seeds: int, steps: int | None, out: Path | None
) -> _Work:
    _check_kind(rule)
    agents: dict[str, list[TrainConfig]] = {}
    choice = None
    for task in dict.fromkeys(tasks):
        base = in_small_batches(for_run(task, rule))
        most = min(MAX_STEPS, MAX_UPDATES // base.updates_per_step)
        base = replace(base, steps=steps or min(base.steps, most))
        choice = choice or choose_rule(base)
        out = out or Path("analysis") / choice.name
        every = -(-base.steps // NUM_AGES)
        base = replace(
            base,
            device="cpu",
            progress="none",
            log_every=max(1, base.steps // 50),
            checkpoint=CheckpointConfig(every, None, keep=100),
        )
        place = out / "agents" / task.replace(":", "-").replace("/", "-")
        agents[task] = [replace(base, seed=s, out=place / f"seed-{s}") for s in range(seeds)]
    assert choice is not None and out is not None
    settings = {"rule": _published(resolved_rule(choice)), "seeds": seeds, "steps": steps}
    count = "One agent" if seeds == 1 else f"{seeds} agents"
    lead = f"{count} on each task, newborn and at up to {NUM_AGES} later ages."
    controls = {task: control_agents(choice, own) for task, own in agents.items()}
    return _Work(choice.name, out, settings, lead, agents, choice, controls)


def in_small_batches(config: TrainConfig) -> TrainConfig:
    """At least as many trajectories in each training step, but in more updates of fewer."""
    parts = -(-config.batch_size // MAX_BATCH)
    if parts == 1:
        return config
    updates = config.updates_per_step * parts
    return replace(config, batch_size=MAX_BATCH, updates_per_step=updates)


def _published(rule: dict[str, Any]) -> dict[str, Any]:
    """Which rule it is, without where it is: pages are passed on, folders are private."""
    return {name: value for name, value in rule.items() if name != "path"}


def _check_kind(rule: str) -> None:
    if rule in (ACTOR_CRITIC, POLICY_GRADIENT):
        raise DiscorlError(
            f"{rule} has no targets to analyse: use cmpo or a discovered rule, such as disco-mini"
        )


def _begun(work: _Work) -> dict[str, Any]:
    """What analysis.json holds so far."""
    return begun(work.folder, {"rule": work.name, "lead": work.lead, "settings": work.settings})


def _work(
    work: _Work,
    names: list[str],
    only: Sequence[str],
    content: dict[str, Any],
    console: Console,
    workers: int,
) -> bool:
    """Train and analyse what is missing; returns whether all of it is done.

    What does not apply is left out, unless the user asked for it by name.
    """
    without = {(x["task"], x["name"]): x["reason"] for x in content.get("left_out", ())}
    done = {(s["task"], s["name"]) for s in content["sections"]} | without.keys()
    for (_, name), reason in without.items():
        if name in only:
            raise NotApplicable(reason)
    content["tasks"] = list(dict.fromkeys([*content.get("tasks", ()), *work.agents]))
    left = {task: [n for n in names if (task, n) not in done] for task in work.agents}
    runs = [run for task, todo in left.items() for run in _runs(work, task, todo)]
    parts = [
        Job(_analysed, (work.name, task, name, *_folders(work, task, name)))
        for task, todo in left.items()
        for name in sorted(todo, key=lambda n: n not in LONGEST_FIRST)
    ]
    if not parts:
        return True
    total = len(parts) * PART + sum(run.steps for run in runs)
    with shown_progress(RunProgress(total, "auto", "", console)) as tick:
        trainings = [Job(_trained, (run,)) for run in runs]
        for _, is_done in results(trainings, workers, tick):
            if not is_done:
                return False
        for job, found in results(parts, workers, tick):
            _, task, name, *_ = job.args
            if isinstance(found, NotApplicable):
                if name in only:
                    raise found
                say(console, f"No {name}: {found}")
                reason = {"task": task, "name": name, "reason": str(found)}
                left_out = [*content.get("left_out", ()), reason]
                left_out.sort(key=lambda x: (content["tasks"].index(x["task"]), x["name"]))
                content["left_out"] = left_out
                write_json(work.folder / "analysis.json", content)
            else:
                _add(work.folder, content, task, name, found)
    return True


def _runs(work: _Work, task: str, todo: Iterable[str]) -> list[TrainConfig]:
    """The agents that the analyses need, with their controls."""
    if work.is_trained or not todo:
        return []
    found = list(work.agents[task])
    if any(ANALYSES[name].has_controls for name in todo):
        if work.choice.params:
            write_random_rules(work.choice, work.agents[task])
        found += [run for own in work.controls[task].values() for run in own]
    return found


def _folders(work: _Work, task: str, name: str) -> tuple[list[str], dict[str, list[str]]]:
    """Of the rule's agents, and of the controls that an analysis looks at."""
    controls = work.controls.get(task, {}) if ANALYSES[name].has_controls else {}
    own = [str(run.out) for run in work.agents[task]]
    return own, {label: [str(run.out) for run in runs] for label, runs in controls.items()}


def _trained(config: TrainConfig, tick: Tick) -> bool:
    return run_to_end(Training, config, tick)


def _analysed(
    label: str,
    task: str,
    name: str,
    folders: list[str],
    controls: dict[str, list[str]],
    tick: Tick,
) -> Result | NotApplicable:
    """What one analysis finds, or why it does not apply."""
    analysis = ANALYSES[name]
    lives = [_life(folder, label) for folder in folders]
    more = (
        [{name: [_life(x, name) for x in some] for name, some in controls.items()}]
        if analysis.has_controls
        else []
    )
    try:
        found = analysis.function(lives, *more)
    except NotApplicable as e:
        found = e
    tick(PART)
    return found


@lru_cache(maxsize=32)
def _life(folder: str, label: str) -> Life:
    """Read once by each process; it does not change any more."""
    return read_life(Path(folder), label)


def _add(folder: Path, content: dict[str, Any], task: str, name: str, result: Result) -> None:
    """Draw what an analysis found, and write it down."""
    analysis = ANALYSES[name]
    about = {"name": name, "task": task, "title": analysis.title, "about": analysis.about}
    add_section(folder, content, about, result, list(ANALYSES))
