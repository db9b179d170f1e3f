"""Running a program: its folder, its processes, its checkpoints, and its end, however it comes."""

from __future__ import annotations

import warnings
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from discorl import __version__
from discorl.bounds import MAX_COUNT, shown
from discorl.errors import DiscorlError, EnvFailure, is_out_of_memory
from discorl.runs import distributed
from discorl.runs.checkpoint import CheckpointConfig, CheckpointFolder, Loaded
from discorl.runs.config_file import VERSION, check_kind, from_json, read_config_file
from discorl.runs.curves import text_curve
from discorl.runs.distributed import LostContact
from discorl.runs.files import held, started_folder
from discorl.runs.interrupt import StopRequest
from discorl.runs.malloc import keep_freed_memory
from discorl.runs.outputs import Outputs
from discorl.runs.program import CallbackFailed, Diverged, Program, RunResult
from discorl.runs.steady_output import steady_output
from discorl.runs.terminal import say
from discorl.runs.threads import ThreadTuner

USES = {
    "agent.npz": "; 'discorl evaluate {0}' plays its agent",
    "rule.npz": "; 'discorl train --rule {0}/rule.npz' uses its rule",
}
"""What can be done with the result of a run that cannot be resumed."""


def run(
    program: Program,
    console: Console | None = None,
    resume: bool = False,
    even_diverged: bool = False,
) -> RunResult:
    """Run a program to its last step, in a new folder or, to resume a run, in ``config.out``.

    A run that diverged resumes from its last good checkpoint, or with ``even_diverged`` from the
    newest.

    Ctrl-C ends it early, and so does an environment that fails; the results so far are kept.
    Processes that torchrun has restarted resume the run that they had begun.
    """
    config, ranks = program.config, program.ranks
    keep_freed_memory()
    is_quiet = config.progress == "none" or not ranks.is_first
    console = Console(quiet=True) if is_quiet else console or Console()
    out = None if config.out is None else Path(config.out)
    with steady_output(), ExitStack() as stack:
        is_restarted = not resume and ranks.restarts > 0 and distributed.was_begun(out, ranks)
        if resume or is_restarted:
            assert out is not None
            outputs = _resume(program, out, console, stack, is_restarted, even_diverged)
        else:
            outputs = _begin(program, out, console, stack)
        return _run(program, outputs, console)


def _begin(program: Program, out: Path | None, console: Console, stack: ExitStack) -> Outputs:
    """Begin in a folder of its own, which ``stack`` holds."""
    is_first, headline = program.ranks.is_first, program.begin(None)
    distributed.any_of(False)  # wait: if one process could not start, none continues
    with started_folder(out, program.name, stack) if is_first else nullcontext() as made:
        folder = Path(distributed.broadcast(str(made)))
        if is_first:
            distributed.mark_as_begun(folder, program.ranks)
            # While it is empty, a run that starts over loses nothing: see _check_nothing_is_lost.
            if program.config.checkpoint.are_wanted:
                _checkpoints(program, folder).folder.mkdir(exist_ok=True)
        outputs = Outputs(program, folder, _settings(program, folder, {}), console)
    say(console, *f"{headline}, into {folder}".splitlines())
    return outputs


def _resume(
    program: Program,
    folder: Path,
    console: Console,
    stack: ExitStack,
    is_restarted: bool,
    even_diverged: bool,
) -> Outputs:
    """Resume the run in ``folder``, locked by ``stack``, from its last checkpoint if any."""
    config, is_first = program.config, program.ranks.is_first
    stack.enter_context(held(folder) if is_first else nullcontext())
    before = distributed.broadcast(_read_before(program, folder) if is_first else None)
    if is_first and not is_restarted:
        _check_nothing_is_lost(program, folder)
    program.begin(before)
    checkpoints = _checkpoints(program, folder)
    found = checkpoints.latest(even_diverged) if is_first else None
    step = distributed.broadcast(found.step if found else None)
    if step is not None:
        program.state.step = step
        if found and (note := _past_divergence(checkpoints, found, program.unit)):
            say(console, note)
        if note := _restored(program, found):
            say(console, note)
        if step > config.steps:
            raise DiscorlError(
                f"{folder} is already at {program.unit} {step}: set --steps to at least that"
            )
    outputs = Outputs(program, folder, _settings(program, folder, before), console)
    if is_first:
        checkpoints.prune()
    done = f"Resuming {folder} after {program.unit} {step}"
    fresh = f"{folder} has no checkpoint yet, so the run starts over"
    say(console, fresh if step is None else done)
    return outputs


def _restored(program: Program, found: Loaded | None) -> str:
    """Restore the state; the first process has the checkpoint, and says so if it makes no sense."""
    try:
        note = program.restore(found.content if found else None)
        state = program.state
        if found and (state.step != found.step or not 0 <= state.seconds <= MAX_COUNT):
            raise ValueError(f"step {shown(state.step)} after {shown(state.seconds)} seconds")
        return note
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as e:
        if found is None or isinstance(e, DiscorlError) or is_out_of_memory(e):
            raise
        raise DiscorlError(
            f"{found.path} is not a checkpoint of this run ({e!r:.80}): remove it to use the one "
            "before it, or start the run over"
        ) from None


def _past_divergence(checkpoints: CheckpointFolder, found: Loaded, unit: str) -> str:
    """What to say if the run has diverged, or nothing."""
    if not (diverged := checkpoints.steps(is_diverged=True)):
        return ""
    said = f"The checkpoint of {unit} {diverged[-1]} was saved because learning had diverged"
    if found.is_diverged:
        return f"{said}; this run continues from it"
    return f"{said}; going back to the last good one, of {unit} {found.step}"


def _read_before(program: Program, folder: Path) -> dict[str, Any]:
    """The config.json of a run to resume. Raises if that is impossible, warns if inexact."""
    before = read_config_file(folder)
    check_kind(folder, before, program.kind)
    asked = from_json(CheckpointConfig, before.get("checkpoint", {}))
    if not asked.are_wanted and not (folder / "checkpoints").exists():
        raise DiscorlError(f"{folder} was run without checkpoints: start it over")
    if (version := before.get("torch", torch.__version__)) != torch.__version__:
        warnings.warn(
            f"the run began with torch {version}, this is torch {torch.__version__}: "
            "results may differ in the last bits",
            stacklevel=2,
        )
    return before


def _check_nothing_is_lost(program: Program, folder: Path) -> None:
    """Raise if a run without checkpoints has something that starting over would overwrite.

    One that was killed before its first checkpoint has an empty folder for them and no result.
    """
    checkpoints, log = _checkpoints(program, folder), folder / "metrics.jsonl"
    has_result = (folder / program.result).exists()
    has_rows = log.exists() and log.stat().st_size > 0
    saved = checkpoints.steps() or checkpoints.steps(is_diverged=True)
    if saved or not (has_result or (has_rows and not checkpoints.folder.is_dir())):
        return
    what = program.result if has_result else log.name
    use = USES.get(program.result, "").format(folder) if has_result else ""
    raise DiscorlError(
        f"{folder} has no checkpoints to resume from, and starting over would overwrite its "
        f"{what}: copy its folder 'checkpoints' too, or start a new run{use}"
    )


def _checkpoints(program: Program, folder: Path) -> CheckpointFolder:
    return CheckpointFolder(folder / "checkpoints", program.config.checkpoint.keep)


def _settings(program: Program, folder: Path, before: dict[str, Any]) -> dict[str, Any]:
    """All of config.json; a resumed run keeps the versions that it began with."""
    began_with = {"discorl": __version__, "torch": torch.__version__}
    began_with |= {k: before[k] for k in began_with if k in before}
    about = {"kind": program.kind, "version": VERSION, "num_processes": program.ranks.size}
    return before | about | began_with | program.settings() | {"out": str(folder)}


def _run(program: Program, outputs: Outputs, console: Console) -> RunResult:
    """All steps; then the result, however they ended."""
    folder, ranks, failure, stopped = outputs.folder, program.ranks, None, ""
    kept = [folder / program.result]
    with StopRequest(ranks.size > 1) as stop:
        with outputs, _threads(program) as threads:
            try:
                stopped = _step_to_the_end(program, outputs, threads, stop)
            except KeyboardInterrupt:
                stop.reason = stop.reason or "Ctrl-C"
                # Worker processes of the user's may report it, too: like any failure of theirs.
                if not stop.insisted and ranks.size == 1:
                    outputs.save_checkpoint()
            except CallbackFailed as e:  # the loop has saved a checkpoint, if any are wanted
                failure, kept = e, [*filter(None, [outputs.saved]), *kept]
            except (Diverged, EnvFailure, LostContact) as e:
                # A signal to all processes of the job may have ended environments as well.
                failure = None if stop.requested and isinstance(e, EnvFailure) else e
                # All processes see the same losses, but each has environments of its own.
                is_diverged = isinstance(e, Diverged)
                if is_diverged or ranks.size == 1:
                    kept = [*filter(None, [outputs.save_checkpoint(is_diverged)]), *kept]
        where = program.finish(folder, outputs.rows)
    if curve := text_curve(outputs.rows):
        say(console, *curve.splitlines())
    if failure:
        there = " and ".join(map(str, kept))
        said = f"{failure} (what was learnt before that is in {there})"
        if isinstance(failure, Diverged | CallbackFailed) and len(kept) > 1:
            said += f". To continue: discorl {program.kind} --resume {folder}"
        raise type(failure)(said) from failure
    distributed.mark_as_ended(folder, ranks)
    interrupted = program.state.step < program.config.steps and not stopped
    if interrupted:
        reason = stop.reason or "another process"
        say(console, f"Stopped by {reason}; the results so far are in {folder}")
        if _checkpoints(program, folder).steps():
            command = f"discorl {program.kind} --resume {folder}"
            say(console, f"Resume with: {command}")
    else:
        done = f"Stopped early: {stopped}" if stopped else "Done"
        say(console, *f"{done}. {where}".splitlines())
    return RunResult(folder, interrupted, stopped)


def _threads(program: Program) -> ThreadTuner:
    """As the user asked. Auto is only for a single process on the CPU: others wait for each other,
    or for the device, so their times say nothing."""
    threads, ranks = program.config.threads, program.ranks
    if threads == "auto" and (ranks.size > 1 or ranks.device.type != "cpu"):
        threads = torch.get_num_threads()
    return ThreadTuner(threads)


def _step_to_the_end(
    program: Program, outputs: Outputs, threads: ThreadTuner, stop: StopRequest
) -> str:
    """The loop; returns why the program has ended it early, if it has.

    A last row that is not due goes into no checkpoint: more steps may follow it.
    """
    state, steps = program.state, program.config.steps
    asked = program.asked()
    is_last, (is_over,) = False, distributed.any_of(bool(asked.stop))
    while state.step < steps and not (is_last or is_over):
        with threads.step():
            program.step(outputs.folder)
        outputs.tick()
        program.watch(outputs.folder, outputs.log() if outputs.row_is_due() else None)
        asked = program.asked()
        is_last, is_over, is_due = distributed.any_of(
            state.step == steps or stop.requested or asked.failure is not None,
            bool(asked.stop),
            asked.checkpoint or outputs.checkpoint_is_due(),
        )
        if is_last or is_over or is_due:
            outputs.save_checkpoint()
    if asked.failure:
        raise asked.failure
    if any(distributed.any_of(outputs.lacks_last_row())):
        outputs.log()
    return (asked.stop or "by the first process") if is_over and state.step < steps else ""
