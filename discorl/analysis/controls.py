"""Control agents: trained as those of the rule are, by rules that nobody has discovered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from discorl.analysis.questions import HAND_WRITTEN, RANDOM, shuffled
from discorl.rules.built_in import ACTOR_CRITIC
from discorl.rules.disco import DiscoRule
from discorl.rules.store import save_rule
from discorl.training.config import TrainConfig
from discorl.training.presets import for_run
from discorl.training.rule_choice import RuleChoice


def control_agents(
    choice: RuleChoice, agents: Sequence[TrainConfig]
) -> dict[str, list[TrainConfig]]:
    """What they are trained with, by the name of the control; ``agents`` are those of the rule.

    All but the rule is the same: network, batches, learning rate, seeds; but the actor-critic has
    a learning rate and costs of its own. The hand-written rule is not compared with itself.
    """
    place = Path(str(agents[0].out)).parent
    found: dict[str, list[TrainConfig]] = {}
    if choice.params:
        found[RANDOM] = [
            replace(a, rule=str(random_rule_file(a)), out=place / "random" / f"seed-{a.seed}")
            for a in agents
        ]
    if choice.name != HAND_WRITTEN:
        found[HAND_WRITTEN] = [
            replace(a, rule=HAND_WRITTEN, out=place / HAND_WRITTEN / f"seed-{a.seed}")
            for a in agents
        ]
    own = for_run(agents[0].task, ACTOR_CRITIC)
    found[ACTOR_CRITIC] = [
        replace(
            a,
            rule=ACTOR_CRITIC,
            optimiser=own.optimiser,
            actor_critic=own.actor_critic,
            out=place / ACTOR_CRITIC / f"seed-{a.seed}",
        )
        for a in agents
    ]
    return found


def random_rule_file(agent: TrainConfig) -> Path:
    """Where the randomised rule of an agent's seed is, or will be."""
    return Path(str(agent.out)).parent / "random" / f"rule-{agent.seed}.npz"


def write_random_rules(choice: RuleChoice, agents: Sequence[TrainConfig]) -> None:
    """The rule's weights in random places, in other places for each seed."""
    assert isinstance(choice.rule, DiscoRule)
    for agent in agents:
        path = random_rule_file(agent)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            about = {"weights": f"those of {choice.name}, in random places", "seed": agent.seed}
            save_rule(path, choice.rule, shuffled(choice.params, agent.seed), about)
