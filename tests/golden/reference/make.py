"""Makes golden files with the JAX reference: of other sizes, and with harder data, than the first
ones (../*.npz) in ``other_sizes/``, and with results in float64 in ``float64/``.

    python tests/golden/reference/make.py [NAME...]           makes these files, or all
    python tests/golden/reference/make.py --check FILE...     compares FILE with new results
    python tests/golden/reference/make.py --float64 FILE...   makes results of FILE in float64

with DISCO_RL_PATH=SOURCE_TREE and DISCORL_DISCO103=FILE. ``--check`` reads the inputs of any golden
file and prints by how much the results in it differ from what the reference gives here, relative to
the largest entry of each array. Takes up to two minutes a file, most of which is compilation.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from reference import (
    KEY,
    AgentSizes,
    Arrays,
    RuleSizes,
    flat,
    inputs_of,
    make_actor_critic,
    make_disco_agent,
    make_value_function,
    results,
    use_floats,
)

GOLDEN = Path(__file__).parent.parent
DISCO103_BINS = 601
SMALL_103 = AgentSizes(
    num_actions=3, torso=(6, 5), lstm=4, head_hidden=(5,), num_bins=DISCO103_BINS
)
OTHER_RULE = RuleSizes(
    prediction=17,
    hidden=10,
    embedding=(6, 5, 2),
    action_channels=(5,),
    policy_channels=(4, 3),
    lifetime_hidden=6,
    lifetime_embedding=(8, 5),
    lifetime_prediction_embedding=(4, 3),
    lifetime_action_channels=(7, 4, 3),
)


@dataclass(frozen=True)
class Experience:
    """What rollouts are like."""

    num_steps: int
    batch_size: int
    rewards: Literal["mixed", "zero", "large", "sparse"] = "mixed"
    ends: Literal["some", "first and last", "all but the first", "all"] = "some"
    """The steps at which an episode ends."""


# --- drawing inputs ------------------------------------------------------------------------------


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    return (scale * rng.normal(size=shape)).astype(np.float32)


def draw_params(rng: np.random.Generator, init: Callable[[], Any], prefix: str) -> Arrays:
    """Parameters of the shapes that ``init`` would make. Its values leave biases and heads at or
    near 0, where mistakes would not show."""

    def draw(x: jax.ShapeDtypeStruct) -> np.ndarray:
        is_bias = len(x.shape) == 1
        return normal(rng, *x.shape, scale=0.1 if is_bias else x.shape[-2] ** -0.5)

    shapes = jax.eval_shape(init)
    drawn = {
        module: {leaf: draw(shapes[module][leaf]) for leaf in sorted(shapes[module])}
        for module in sorted(shapes)
    }
    return flat(drawn, prefix)


def draw_rollout(
    rng: np.random.Generator,
    prefix: str,
    experience: Experience,
    num_actions: int,
    observation: tuple[int, ...] = (),
) -> Arrays:
    shape = (experience.num_steps, experience.batch_size)
    observations = normal(rng, *shape, *observation)
    mixed = normal(rng, *shape, scale=2.0) * (rng.random(shape) < 0.5)
    rewards = {
        "mixed": mixed,
        "zero": 0 * mixed,
        "large": 1000 * mixed,
        "sparse": rng.random(shape) < 0.1,
    }
    goes_on = rng.random(shape) > 0.15
    step = np.arange(experience.num_steps)[:, None]
    discounts = {
        "some": goes_on,
        "first and last": (step > 0) & (step < experience.num_steps - 1),
        "all but the first": step == 0,
        "all": step < 0,
    }
    drawn = {
        "observations": observations,
        "actions": rng.integers(num_actions, size=shape).astype(np.int32),
        "rewards": rewards[experience.rewards].astype(np.float32),
        "discounts": np.broadcast_to(discounts[experience.ends], shape).astype(np.float32),
        "behaviour_logits": normal(rng, *shape, num_actions, scale=0.8),
    }
    return {f"{prefix}/{name}": array for name, array in drawn.items()}


def value_estimation(
    seed: int, experience: Experience, num_actions: int, num_bins: int = 21
) -> Arrays:
    rng = np.random.default_rng(seed)
    rollout = draw_rollout(rng, "rollout", experience, num_actions)
    actions = rollout["rollout/actions"]
    return {
        "in/pi_logits": normal(rng, *actions.shape, num_actions),
        "in/mu_logits": rollout["rollout/behaviour_logits"],
        "in/q": normal(rng, *actions.shape, num_actions, num_bins, scale=2.0),
        "in/target_q": normal(rng, *actions.shape, num_actions, num_bins, scale=2.0),
        "in/v_categorical": normal(rng, *actions.shape, num_bins, scale=2.0),
        "in/v_scalar": normal(rng, *actions.shape, 1),
        "in/actions": actions,
        "in/rewards": rollout["rollout/rewards"][1:],
        "in/is_terminal": 1 - rollout["rollout/discounts"][1:],
        "tx/x": np.linspace(-400, 400, 81, dtype=np.float32),
    }


def policy_gradient(seed: int, num_steps: int, batch_size: int, num_actions: int) -> Arrays:
    rng = np.random.default_rng(seed)
    shape = (num_steps, batch_size)
    return {
        "in/logits": normal(rng, *shape, num_actions, scale=3.0),
        "in/actions": rng.integers(num_actions, size=shape).astype(np.int32),
        "in/adv": normal(rng, num_steps - 1, batch_size),
        "in/normalized_adv": normal(rng, num_steps - 1, batch_size, scale=1.2),
    }


def actor_critic(seed: int, num_updates: int, experience: Experience, sizes: AgentSizes) -> Arrays:
    rng = np.random.default_rng(seed)
    agent = make_actor_critic(sizes)
    drawn = draw_params(rng, lambda: agent.initial_learner_state(KEY).params, "params_0")
    for i in range(num_updates):
        drawn |= draw_rollout(rng, f"rollout_{i}", experience, sizes.num_actions, sizes.observation)
    return drawn


def disco(
    seed: int,
    num_updates: int,
    experience: Experience,
    sizes: AgentSizes,
    rule: RuleSizes | None = RuleSizes(),  # noqa: B008
) -> Arrays:
    """Some updates by a random rule of these sizes, or by Disco103."""
    rng = np.random.default_rng(seed)
    agent = make_disco_agent(sizes, rule)
    drawn: Arrays = {}
    if rule is not None:
        drawn |= draw_params(rng, lambda: agent.update_rule.init_params(KEY)[0], "meta_params")
    for prefix in ("target_params_0", "params_0"):
        drawn |= draw_params(rng, lambda: agent.initial_learner_state(KEY).params, prefix)
    for i in range(num_updates):
        drawn |= draw_rollout(rng, f"rollout_{i}", experience, sizes.num_actions, sizes.observation)
    return drawn


def meta_gradient(
    seed: int,
    num_updates: int,
    experience: Experience,
    validation: Experience,
    sizes: AgentSizes,
    rule: RuleSizes | None = RuleSizes(),  # noqa: B008
    value_torso: tuple[int, ...] = (12,),
) -> Arrays:
    """The meta-gradient of a random rule of these sizes, or of Disco103."""
    rng = np.random.default_rng(seed)
    agent, judge = make_disco_agent(sizes, rule), make_value_function(value_torso)
    observation = {"observation": np.zeros((1, *sizes.observation), np.float32)}
    drawn: Arrays = {}
    if rule is not None:
        drawn |= draw_params(rng, lambda: agent.update_rule.init_params(KEY)[0], "meta_params")
    drawn |= draw_params(rng, lambda: agent.initial_learner_state(KEY).params, "params_0")
    drawn |= draw_params(
        rng, lambda: judge.initial_state(KEY, observation).params, "value_params_0"
    )
    for i in range(num_updates):
        drawn |= draw_rollout(
            rng, f"train_rollout_{i}", experience, sizes.num_actions, sizes.observation
        )
    return drawn | draw_rollout(
        rng, "valid_rollout", validation, sizes.num_actions, sizes.observation
    )


# --- the files -----------------------------------------------------------------------------------

OTHER_SIZES: dict[str, Callable[[], Arrays]] = {
    "value_estimation_18_actions": lambda: value_estimation(
        seed=4, experience=Experience(30, 2, rewards="large"), num_actions=18, num_bins=11
    ),
    "value_estimation_601_bins": lambda: value_estimation(
        seed=10, experience=Experience(3, 1, ends="all"), num_actions=2, num_bins=601
    ),
    "policy_gradient_18_actions": lambda: policy_gradient(
        seed=2, num_steps=30, batch_size=2, num_actions=18
    ),
    "actor_critic_2_steps": lambda: actor_critic(
        seed=10, num_updates=1, experience=Experience(2, 3), sizes=AgentSizes(num_actions=3)
    ),
    "actor_critic_all_end": lambda: actor_critic(
        seed=4,
        num_updates=5,
        experience=Experience(8, 1, rewards="sparse", ends="all but the first"),
        sizes=AgentSizes(num_actions=7, observation=(5,), torso=(16,)),
    ),
    "disco_first_and_last_end": lambda: disco(
        seed=5,
        num_updates=3,
        experience=Experience(8, 3, ends="first and last"),
        sizes=AgentSizes(num_actions=3),
    ),
    "disco_7_actions_all_end": lambda: disco(
        seed=41,
        num_updates=3,
        experience=Experience(8, 3, ends="all but the first"),
        sizes=AgentSizes(num_actions=7),
    ),
    "disco_5_actions_no_head_mlp": lambda: disco(
        seed=2,
        num_updates=2,
        experience=Experience(8, 1, rewards="large"),
        sizes=AgentSizes(num_actions=5, observation=(7,), torso=(16,), head_hidden=()),
    ),
    "disco_18_actions_other_rule": lambda: disco(
        seed=3,
        num_updates=1,
        experience=Experience(4, 1, rewards="zero"),
        sizes=AgentSizes(
            num_actions=18,
            observation=(5,),
            torso=(20, 12, 8),
            lstm=11,
            head_hidden=(7, 6),
            num_bins=31,
        ),
        rule=OTHER_RULE,
    ),
    "disco103_2_actions": lambda: disco(
        seed=3,
        num_updates=2,
        experience=Experience(5, 1),
        sizes=AgentSizes(num_actions=2, torso=(4,), lstm=3, head_hidden=(), num_bins=DISCO103_BINS),
        rule=None,
    ),
    "meta_gradient_5_actions_other_rule": lambda: meta_gradient(
        seed=2,
        num_updates=1,
        experience=Experience(5, 4),
        validation=Experience(9, 2),
        sizes=AgentSizes(
            num_actions=5,
            observation=(5,),
            torso=(20, 12, 8),
            lstm=11,
            head_hidden=(7, 6),
            num_bins=31,
        ),
        rule=OTHER_RULE,
        value_torso=(10, 6),
    ),
    "meta_gradient_all_end": lambda: meta_gradient(
        seed=5,
        num_updates=2,
        experience=Experience(6, 3, ends="all but the first"),
        validation=Experience(12, 3, ends="all but the first"),
        sizes=AgentSizes(num_actions=3),
    ),
}


# Small, for numbers of 64 bits do not compress.
IN_FLOAT64: dict[str, Callable[[], Arrays]] = {
    "policy_gradient": lambda: policy_gradient(seed=0, num_steps=9, batch_size=3, num_actions=5),
    "actor_critic": lambda: actor_critic(
        seed=0, num_updates=3, experience=Experience(8, 3), sizes=AgentSizes(num_actions=3)
    ),
    "disco": lambda: disco(
        seed=0, num_updates=3, experience=Experience(8, 3), sizes=AgentSizes(num_actions=3)
    ),
    "disco103": lambda: disco(
        seed=0, num_updates=3, experience=Experience(6, 2), sizes=SMALL_103, rule=None
    ),
}


def make(name: str) -> None:
    if name in OTHER_SIZES:
        use_floats(32)
        inputs = OTHER_SIZES[name]()
        write(GOLDEN / "other_sizes" / f"{name}.npz", inputs | results(inputs))
    if name in IN_FLOAT64:
        inputs = IN_FLOAT64[name]()
        write(GOLDEN / "float64" / f"{name}.npz", inputs | float64_results(inputs))


def float64_results(inputs: Arrays) -> Arrays:
    """Results in float64; parameters after the last update only."""
    use_floats(64)
    made = results(inputs)
    num_updates = len({k.split("/")[0] for k in inputs if k.startswith("rollout_")})
    on_the_way = tuple(f"params_{i}/" for i in range(1, num_updates))
    return {k: array for k, array in made.items() if not k.startswith(on_the_way)}


def make_float64_of(path: Path) -> None:
    """The results only: a replay takes the inputs from the file of the same name."""
    inputs = inputs_of(read(path))
    write(GOLDEN / "float64" / path.name, float64_results(inputs))


def read(path: Path) -> Arrays:
    with np.load(path, allow_pickle=False) as archive:
        return dict(archive)


def write(path: Path, arrays: Arrays) -> None:
    unusable = [k for k, array in arrays.items() if not np.isfinite(array).all()]
    if unusable:
        raise SystemExit(f"{path.name}: not finite: {', '.join(unusable)}")
    np.savez_compressed(path, allow_pickle=False, **arrays)  # pyright: ignore[reportArgumentType]
    print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB", flush=True)


def check(path: Path) -> bool:
    """Print by how much the results in a file differ from those made here; whether it has them."""
    kept = read(path)
    inputs = inputs_of(kept)
    kept = {name: array for name, array in kept.items() if name not in inputs}
    if any(array.dtype == np.float64 for array in kept.values()):
        made = float64_results(inputs)
    else:
        use_floats(32)
        made = results(inputs)
    other = sorted(set(made) ^ set(kept))
    other += [k for k in made.keys() & kept.keys() if made[k].shape != kept[k].shape]
    if other:
        print(f"{path.name}: FAIL: not in both, or of another shape: {', '.join(other)}")
        return False
    differences = {k: relative_difference(made[k], kept[k]) for k in kept}
    worst = max(differences, key=lambda k: differences[k])
    median = np.median(list(differences.values()))
    print(
        f"{path.name}: largest difference {differences[worst]:.1e} ({worst}), median {median:.1e}",
        flush=True,
    )
    return True


def relative_difference(made: np.ndarray, kept: np.ndarray) -> float:
    if not kept.size:
        return 0.0
    difference = float(np.abs(made - kept).max() / max(np.abs(kept).max(), 1e-12))
    return float("inf") if np.isnan(difference) else difference


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="of the files to make: all")
    parser.add_argument("--check", nargs="+", type=Path, metavar="FILE", default=[])
    parser.add_argument("--float64", nargs="+", type=Path, metavar="FILE", default=[])
    asked = parser.parse_args()
    for path in asked.float64:
        make_float64_of(path)
    if asked.check or asked.float64:
        failed = [path for path in asked.check if not check(path)]
        return int(bool(failed))
    names = [*OTHER_SIZES, *IN_FLOAT64]
    if unknown := set(asked.names) - set(names):
        parser.error(f"no such file: {', '.join(unknown)}; there are {', '.join(names)}")
    for name in asked.names or names:
        make(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
