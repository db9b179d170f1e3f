"""Is an update in the middle of a run the reference's? From its state and its batch, once.

    python -m benchmarks.same_updates                       # steps 40 to 700 of one run, 10 minutes
    python -m benchmarks.same_updates --steps 40 60 --seed 1

The JAX reference trains on Catch with Disco103. At some steps its whole state (parameters, Adam,
target network, moments, the rule's memory) and its batch are handed to our learner, and the two
updates are compared. The golden files of the tests begin at birth; this also sees an agent that has
begun to solve its task. Writes a table to benchmarks/results.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.venvs import ROOT
from benchmarks.worker import COLUMNS, LEARNING_RATE, ROWS
from benchmarks.workers import jax_python, use_rule
from discorl.agents.agent import Agent, adam_clip, mlp_agent_net
from discorl.agents.update import update_agent
from discorl.optim import AdamState
from discorl.rules.store import load_rule
from discorl.types import AgentState, EnvSpec, LSTMState, Moments, Params, Rollout, RuleState
from tests.golden.agents import agent_name

Arrays = Mapping[str, np.ndarray]
RESULT = Path(__file__).parent / "results" / "same-updates.md"
STEPS = (40, 150, 300, 450, 550, 600, 650, 700)


def params_of(arrays: Arrays, prefix: str) -> Params:
    """Parameters, or what is kept for each of them, under our names."""
    found = {}
    for name, x in arrays.items():
        if name.startswith(f"{prefix}/"):
            ours = agent_name(name.removeprefix(f"{prefix}/")).replace("second", "y")
            found[ours] = torch.from_numpy(np.ascontiguousarray(x.T))
    return found


def state_of(arrays: Arrays, when: str) -> AgentState:
    """The reference's state as ours."""

    def tensor(name: str) -> Tensor:
        return torch.as_tensor(np.asarray(arrays[f"{when}/{name}"], np.float32))

    def moments(name: str) -> Moments:
        return Moments(*(tensor(f"{name}/{x}") for x in ("moment1", "moment2", "decay_product")))

    params, mu, nu, target = (
        params_of(arrays, f"{when}/{x}") for x in ("params", "mu", "nu", "target_params")
    )
    return AgentState(
        params,
        (AdamState(tensor("count"), mu, nu), (), ()),
        RuleState(
            moments("adv_ema_state"),
            moments("td_ema_state"),
            LSTMState(tensor("rnn/hidden"), tensor("rnn/cell")),
            target,
        ),
    )


def batch_of(arrays: Arrays) -> Rollout:
    """The batch of the step."""

    def tensor(name: str) -> Tensor:
        return torch.as_tensor(np.asarray(arrays[f"batch/{name}"], np.float32))

    return Rollout(
        tensor("observations").squeeze(-1),
        tensor("actions").long(),
        tensor("rewards"),
        tensor("discounts"),
        tensor("logits"),
    )


def distance(got: Params, want: Params, start: Params) -> float:
    """How far two changes of the same parameters are apart, as a share of the change."""
    gap = sum(float((got[k] - want[k]).double().square().sum()) for k in want)
    size = sum(float((want[k] - start[k]).double().square().sum()) for k in want)
    return (gap / size) ** 0.5


def compare(arrays: Arrays) -> dict[str, float]:
    """Our update beside the reference's; shares of the change that it makes."""
    loaded = load_rule("disco103")
    net = mlp_agent_net(EnvSpec((ROWS, COLUMNS), 3), loaded.rule)
    agent = Agent(net, loaded.rule, adam_clip(LEARNING_RATE))
    before, after, batch = state_of(arrays, "before"), state_of(arrays, "after"), batch_of(arrays)
    ours, _ = update_agent(agent, loaded.params, before, batch)

    def of_state(state: AgentState) -> dict[str, Params]:
        rule, adam = state.rule, state.optimiser[0]
        assert rule.target_params is not None and rule.lifetime_rnn is not None
        moments = (rule.advantage_moments, rule.td_moments)
        pairs = {f"{i}/{k}": x for i, m in enumerate(moments) for k, x in vars(m).items()}
        return {
            "parameters": state.params,
            "Adam's mean": adam.mu,
            "Adam's square": adam.nu,
            "target network": rule.target_params,
            "moments": pairs,
            "the rule's memory": rule.lifetime_rnn._asdict(),
        }

    got, want, start = (of_state(x) for x in (ours, after, before))
    caught = batch.rewards[1:] > 0
    return {
        "caught": float(caught.sum() / (batch.discounts[1:] == 0).sum()),
        **{name: distance(got[name], want[name], start[name]) for name in want},
    }


def table(rows: Mapping[int, Mapping[str, float]], command: str) -> str:
    """Markdown."""
    names = list(next(iter(rows.values())))
    lines = [
        f"Made by `{command}`.",
        "",
        "One update of ours and one of the JAX reference, from the same state of the reference's "
        "run on Catch and on the same batch. *caught* is the share of balls that were caught in "
        "the batch. The rest is the distance of the two results, as a share of the change that the "
        "update makes.",
        "",
        f"| step | {' | '.join(names)} |",
        f"|{'---|' * (len(names) + 1)}",
    ]
    for step, row in rows.items():
        cells = [f"{row[n]:.0%}" if n == "caught" else f"{row[n]:.0e}" for n in names]
        lines.append(f"| {step} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--steps", type=int, nargs="+", default=list(STEPS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jax-python", type=Path, help="instead of the one in .bench/jax")
    args = parser.parse_args()
    use_rule()
    python = jax_python(parser, args.jax_python)
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        module = "benchmarks.peers.jax_states"
        command = [str(python), "-m", module, str(args.seed), folder, *map(str, args.steps)]
        subprocess.run(command, check=True, cwd=ROOT)
        for step in args.steps:
            with np.load(Path(folder) / f"{step}.npz", allow_pickle=False) as arrays:
                rows[step] = compare(dict(arrays))
    steps = " ".join(map(str, args.steps))
    text = table(rows, f"python -m benchmarks.same_updates --seed {args.seed} --steps {steps}")
    RESULT.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
