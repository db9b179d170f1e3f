"""Replays golden vectors of the JAX reference through discorl and prints the worst errors.

    python tests/golden_replay.py FILE...

The kind of a file is recognised by its arrays and every size is read from them. Settings that the
arrays do not tell are those under which the reference made them (``SETTINGS``). Exits with 1 if
any quantity is off by more than its tolerance.

Tolerances are relative to the largest entry of an array. The reference's inverse value transform
subtracts 500 from a float32 near 500, so its values come in steps of ``value_rounding``; arrays
whose entries are small beside the values they are differences of (q - V, means of errors) are
allowed that much instead; tests/test_golden.py shows that the reference is that far from exact.
Likewise parameters and meta-gradients are allowed what the last digits of the inputs change in
them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor

from discorl import tree
from discorl.agents.agent import Agent, adam_clip
from discorl.agents.network import with_params
from discorl.agents.update import update_agent
from discorl.errors import DiscorlError
from discorl.meta.estimators.base import MetaGradient
from discorl.meta.life import GivenRollouts
from discorl.meta.meta_gradient import meta_gradient
from discorl.meta.meta_value import MetaValue, MetaValueState, ValueNet
from discorl.meta.objective import ObjectiveWeights
from discorl.meta.window import MemoryMode, Window
from discorl.nets.agent_net import AgentNet
from discorl.nets.torsos import MLPTorso
from discorl.ops import categorical, moments, squash
from discorl.rules import ActorCritic, DiscoRule, PolicyGradient, UpdateRule
from discorl.rules.format import arrays_to_params, params_to_arrays, reference_name
from discorl.rules.store import load_rule
from discorl.rules.values import ReturnSettings, ValueHead, estimate_action_values, estimate_values
from discorl.types import (
    ActionValues,
    AgentState,
    DiscoTargets,
    Moments,
    Params,
    Predictions,
    Rollout,
    RuleState,
    StateValues,
    Targets,
    Values,
)

T = TypeVar("T")


class Named(dict[str, T]):
    """What a file has below ``prefix``; what it lacks is called by its full name."""

    def __init__(self, found: Mapping[str, T], prefix: str = "") -> None:
        super().__init__(found)
        self.prefix = prefix

    def __missing__(self, name: str) -> T:
        raise DiscorlError(f"the file has no array '{self.prefix}{name}'")


Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Settings:
    """What the files do not say of themselves."""

    disco_learning_rate: float = 3e-3
    actor_critic_learning_rate: float = 5e-3
    returns: ReturnSettings = field(default_factory=lambda: ReturnSettings(0.997, 0.95))
    entropy_cost: float = 0.01  # of the policy gradient
    value_learning_rate: float = 1e-3  # of the meta-value function
    value_returns: ReturnSettings = field(default_factory=lambda: ReturnSettings(0.99, 0.96))


SETTINGS = Settings()


@dataclass(frozen=True)
class Tolerances:
    """Largest error allowed, relative to the largest entry of each array."""

    values: float
    loss: float
    params: float = 1e-4


# Differences of values, or made of them: exact only to the reference's rounding of values.
MADE_OF_VALUES = {
    *("adv", "normalized_adv", "raw_advs", "normalized_advs", "pg_advs"),
    *("qv_adv", "normalized_qv_adv", "q_value", "target_q_value", "agent_q_mean", "q_target"),
    *("q_td", "normalized_q_td", "td", "tds", "normalized_td", "normalized_tds"),
    *("value", "values", "avg_value", "target_value", "value_target"),
}
VALUE_NAMES = {
    "adv": "advantage",
    "normalized_adv": "normalized_advantage",
    "qv_adv": "qv_advantage",
    "normalized_qv_adv": "normalized_qv_advantage",
}
"""What the reference calls otherwise than ``Values``."""
MADE_BY_THE_RULE = {"pi", "y", "z", "meta_input_emb"} | {
    f"{name}_{part}" for name in "yz" for part in ("logsumexp", "first8")
}
MEANS_OF_MADE_BY_THE_RULE = {"pi_hat", "y_hat", "z_hat"}  # as logged
RULE_SENSITIVITY = 0.1  # of what the rule's networks make from all of these
MEAN_ROUNDING = 5e-6  # of a logged mean, which may be near 0 though its terms are not

SMALL = Tolerances(values=2e-5, loss=2e-5)
DISCO103 = Tolerances(values=5e-4, loss=1e-5)


@dataclass
class Report:
    """Worst relative error of each quantity beside its tolerance."""

    file: str
    kind: str
    worst: dict[str, tuple[float, float]] = field(default_factory=dict)

    def check(
        self, quantity: str, got: Tensor, want: np.ndarray, tolerance: float, rounding: float = 0.0
    ) -> None:
        """Compare with the reference, which itself is only exact to ``rounding``."""
        expected = torch.as_tensor(np.asarray(want), dtype=torch.float64)
        actual = got.detach().double()
        if actual.shape != expected.shape:
            raise AssertionError(f"{quantity}: shape {actual.shape}, reference {expected.shape}")
        scale = expected.abs().max().clamp(min=1e-12)
        error = float((actual - expected).abs().max() / scale) if expected.numel() else 0.0
        error = float("inf") if np.isnan(error) else error
        allowed = max(tolerance, rounding / float(scale))
        before = self.worst.get(quantity, (0.0, allowed))
        # Of several steps, keep the one that comes closest to its limit or passes it.
        self.worst[quantity] = max(before, (error, allowed), key=lambda x: x[0] / x[1])

    @property
    def failures(self) -> list[str]:
        return [q for q, (error, tolerance) in self.worst.items() if error > tolerance]

    def show(self) -> None:
        verdict = "FAIL" if self.failures else "ok"
        print(f"{self.file}: {self.kind}: {verdict}")
        for quantity, (error, tolerance) in self.worst.items():
            mark = "  <-- past tolerance" if error > tolerance else ""
            print(f"  {quantity:42s} {error:9.2e}  (allowed {tolerance:.1e}){mark}")


# --- reading files -------------------------------------------------------------------------------


def load(path: Path) -> Arrays:
    with np.load(path, allow_pickle=False) as archive:
        return Named(dict(archive))


def group(arrays: Arrays, prefix: str) -> Arrays:
    """The arrays below ``prefix/``."""
    below = f"{prefix}/"
    return Named(
        {k.removeprefix(below): v for k, v in arrays.items() if k.startswith(below)}, below
    )


def count(arrays: Arrays, prefix: str) -> int:
    """How many ``prefix_i`` there are."""
    found = {int(m.group(1)) for k in arrays if (m := re.match(rf"{prefix}_(\d+)/", k))}
    return len(found)


def tensors(arrays: Arrays) -> dict[str, Tensor]:
    prefix = arrays.prefix if isinstance(arrays, Named) else ""
    return Named({k: torch.from_numpy(np.asarray(v)) for k, v in arrays.items()}, prefix)


def rollout_of(arrays: Arrays) -> Rollout:
    t = tensors(arrays)
    return Rollout(
        observations=t["observations"],
        actions=t["actions"].long(),
        rewards=t["rewards"],
        discounts=t["discounts"].float(),
        behaviour_logits=t["behaviour_logits"],
    )


def moments_of(arrays: Arrays) -> Moments:
    t = tensors(arrays)
    return Moments(t["moment1"], t["moment2"], t["decay_product"])


def unit_bins(num_bins: int) -> ValueHead:
    """A value with bins one apart: 21 on [-10, 10], 601 on [-300, 300]; a scalar if there is 1."""
    if num_bins == 1:
        return ValueHead(num_bins=None)
    return ValueHead(num_bins=num_bins, max_abs=(num_bins - 1) / 2)


def value_rounding(*values: Tensor) -> float:
    """Four steps of the reference's float32 values: each of two can be off by two of them, and so
    their difference by four."""
    largest = max(float(v.abs().max()) for v in values)
    step_of_root = 2.0**-15  # float32 spacing between 256 and 512
    return 4 * (2 * (1 + largest) ** 0.5 * step_of_root)


def values_in(values: Values) -> list[Tensor]:
    """The estimates that others are differences of."""
    of_actions = isinstance(values, ActionValues)
    return [values.value, *([values.q_value, values.target_q_value] if of_actions else [])]


def normalized_rounding(rounding: float, normalized: Tensor, state: Moments) -> float:
    """The same after division by the running deviation, which is as uncertain itself."""
    deviation = float(moments.normalize(state, torch.ones(()), subtract_mean=False) ** -1)
    return rounding * (1 + float(normalized.abs().max())) / deviation


NUM_JITTERS, JITTER = 6, 2.0**-23  # float32 runs with inputs off by about a unit in the last place
NOISE_MARGIN = 8
"""For Disco103 the golden meta-gradient is some times as far from the reference's own float64 one
(tests/golden/float64) as ours is: median 1.3e-3 and 0.8e-3, largest ratio 28."""


def in_float64(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


def jittered_runs(run: Callable[[Callable[[Tensor], Tensor]], T]) -> list[T]:
    """Results in float32 of inputs that differ in the last place; ``run`` is told how to do that.

    Adam divides by the root of the second moment, so a gradient that is nothing but rounding
    becomes a full step: how far such runs are from the float64 one says how exact any can be.
    """
    generator = torch.Generator().manual_seed(0)

    def jittered(x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return x
        return x * (1 + JITTER * torch.randn(x.shape, generator=generator))

    return [run(jittered) for _ in range(NUM_JITTERS)]


# --- agents --------------------------------------------------------------------------------------


def agent_name(name: str) -> str:
    """Our name of the reference's agent parameter."""
    leaf = {"w": "weight", "b": "bias"}[name[-1]]
    flat = {"torso_head": "logits", "torso_head_1": "second"}
    per_action = {"mlp": "z", "mlp_1": "aux_pi", "mlp_2": "q"}
    module = name[:-2]
    if m := re.fullmatch(r"mlp/~_embedding_pass/torso/~/linear_(\d+)", module):
        return f"torso.mlp.layers.{m.group(1)}.{leaf}"
    if m := re.fullmatch(r"mlp/~_head_pass/(torso_head(?:_1)?)/~/linear_0", module):
        return f"flat_heads.{flat[m.group(1)]}.{leaf}"
    if m := re.fullmatch(r"mlp/(mlp(?:_\d)?)/~/linear_(\d+)", module):
        return f"action_model.heads.{per_action[m.group(1)]}.layers.{m.group(2)}.{leaf}"
    if module == "mlp/linear":
        return f"action_model.root.{leaf}"
    if module == "mlp/action_cond/linear":
        return f"action_model.lstm.gates.{leaf}"
    raise KeyError(f"no agent parameter is called {name}")


def agent_params(arrays: Arrays, second_head: str) -> Params:
    """Agent parameters from the reference's; its second flat head is y or v."""
    params = {}
    for name, array in arrays.items():
        ours = agent_name(name).replace("flat_heads.second", f"flat_heads.{second_head}")
        params[ours] = torch.from_numpy(np.ascontiguousarray(array.T))
    return params


def net_for(params: Params, rule: UpdateRule) -> AgentNet:
    """A network of the size of these parameters."""

    def widths(prefix: str) -> list[int]:
        pattern = re.compile(re.escape(prefix) + r"\.layers\.(\d+)\.bias")
        found = {int(m.group(1)): len(p) for k, p in params.items() if (m := pattern.fullmatch(k))}
        return [found[i] for i in sorted(found)]

    torso = widths("torso.mlp")
    num_actions = len(params["flat_heads.logits.bias"])
    has_model = "action_model.root.bias" in params
    return AgentNet(
        MLPTorso(params["torso.mlp.layers.0.weight"].shape[1], torso),
        torso[-1],
        num_actions,
        rule.heads(num_actions),
        lstm_size=len(params["action_model.root.bias"]) if has_model else 0,
        head_hidden=widths("action_model.heads.z")[:-1],
    )


def initial_state(agent: Agent, params: Params, target_params: Params | None) -> AgentState:
    rule_state = agent.rule.init_state(params)
    if target_params is not None:
        rule_state = RuleState(
            rule_state.advantage_moments,
            rule_state.td_moments,
            rule_state.lifetime_rnn,
            target_params,
        )
    return AgentState(params, agent.optimiser.init(params), rule_state)


# --- replays -------------------------------------------------------------------------------------


def replay_value_estimation(arrays: Arrays, report: Report) -> None:
    given = tensors(group(arrays, "in"))
    is_terminal = given["is_terminal"].float()
    rewards = torch.cat([torch.zeros_like(given["rewards"][:1]), given["rewards"]])
    rollout = Rollout(
        observations=rewards,
        actions=given["actions"].long(),
        rewards=rewards,
        discounts=torch.cat([torch.ones_like(is_terminal[:1]), 1 - is_terminal]),
        behaviour_logits=given["mu_logits"],
    )
    fresh = RuleState(moments.init_moments(), moments.init_moments())
    head = unit_bins(given["q"].shape[-1])
    logits = given["pi_logits"]

    def compare(prefix: str, values: Values, state: RuleState) -> float:
        rounding = value_rounding(*values_in(values))
        for name, want in group(arrays, prefix).items():
            if name != "loss_from_td":
                got = getattr(values, VALUE_NAMES.get(name, name))
                allowed = rounding if name in MADE_OF_VALUES else 0.0
                if name.startswith("normalized"):
                    kept = state.td_moments if name.endswith("td") else state.advantage_moments
                    allowed = normalized_rounding(rounding, got, kept)
                report.check(f"{prefix}/{name}", got, want, SMALL.values, allowed)
        return rounding

    state = fresh
    for i in range(count(arrays, "retrace")):
        q_value, target_q_value = (head.value(given[name] * 2**i) for name in ("q", "target_q"))
        values, state = estimate_action_values(
            q_value, target_q_value, logits, rollout, state, SETTINGS.returns, lambda x: x
        )
        compare(f"retrace_{i}", values, state)

    for kind in ("categorical", "scalar"):
        if f"v_{kind}" not in given:
            continue
        output = given[f"v_{kind}"]
        value_head = ValueHead(num_bins=None) if kind == "scalar" else unit_bins(output.shape[-1])
        values, state = estimate_values(
            value_head.value(output), logits, rollout, fresh, SETTINGS.returns, lambda x: x
        )
        rounding = compare(f"vtrace_{kind}", values, state)
        loss = value_head.loss(output[:-1], values.value[:-1] + values.td)
        want = arrays[f"vtrace_{kind}/loss_from_td"]
        report.check(f"vtrace_{kind}/loss_from_td", loss, want, SMALL.values, rounding)

    if "tx/x" not in arrays:
        return
    x = torch.from_numpy(arrays["tx/x"])
    num_bins = arrays["tx/two_hot"].shape[-1]
    # Where between two bins a value lies is known as well as the value itself.
    place_rounding = {"two_hot": 2 * float(np.spacing(np.float32((num_bins - 1) / 2)))}
    transforms = {
        "signed_log1p": squash.signed_log1p(x),
        "signed_hyperbolic": squash.signed_hyperbolic(x),
        "signed_parabolic": squash.signed_parabolic(x / 40),
        "two_hot": categorical.two_hot(x / 20, num_bins, (num_bins - 1) / 2),
    }
    for name, got in transforms.items():
        allowed = place_rounding.get(name, 0.0)
        report.check(f"tx/{name}", got, arrays[f"tx/{name}"], SMALL.values, allowed)


def replay_policy_gradient(arrays: Arrays, report: Report) -> None:
    given = tensors(group(arrays, "in"))
    advantage = given["adv"]
    zeros = torch.zeros_like(given["logits"][..., 0])
    rollout = Rollout(zeros, given["actions"].long(), zeros, zeros, given["logits"])
    values = Values(
        value=zeros,
        target_value=zeros,
        rho=zeros[1:],
        advantage=advantage,
        normalized_advantage=given["normalized_adv"],
        value_target=zeros[1:],
        td=zeros[1:],
    )
    rule = PolicyGradient(entropy_cost=SETTINGS.entropy_cost, normalize_advantage=True)
    loss, _ = rule.loss(Predictions(logits=given["logits"]), Targets(values=values), rollout)
    report.check("loss_per_step", loss, arrays["out/loss_per_step"], SMALL.loss)


@dataclass(frozen=True)
class LearnerKind:
    """What tells one kind of learner file from another."""

    rule: UpdateRule
    rule_params: Params
    second_head: str
    learning_rate: float
    tolerances: Tolerances
    targets: Callable[[Any], dict[str, Tensor]]
    log_names: dict[str, str]
    """The reference's name of each quantity it logs -> ours."""


def replay_learner(arrays: Arrays, report: Report, kind: LearnerKind) -> None:
    """Some learner steps, compared after each: state, targets, logs, parameters."""
    params = agent_params(group(arrays, "params_0"), kind.second_head)
    target_arrays = group(arrays, "target_params_0")
    target_params = agent_params(target_arrays, kind.second_head) if target_arrays else None
    optimiser = adam_clip(kind.learning_rate)
    agent = Agent(net_for(params, kind.rule), kind.rule, optimiser)
    state = initial_state(agent, params, target_params)
    tolerances = kind.tolerances

    if outputs := group(arrays, "agent_out_0"):
        observations = rollout_of(group(arrays, "rollout_0")).observations
        rows = observations.flatten(0, 1)
        output = with_params(agent.net, params, lambda net: net.output(rows))
        for name, want in outputs.items():
            got = getattr(output, name).unflatten(0, observations.shape[:2])
            report.check(f"agent_out/{name}", got, want, tolerances.values)

    num_steps = count(arrays, "rollout")
    rollouts = [rollout_of(group(arrays, f"rollout_{i}")) for i in range(num_steps)]
    noise = learner_noise(agent, kind.rule_params, state, rollouts)
    for i, rollout in enumerate(rollouts):
        state, info = update_agent(agent, kind.rule_params, state, rollout)
        values = info.targets.values
        rounding = value_rounding(*values_in(values))
        for name, want in group(arrays, f"targets_{i}").items():
            got = kind.targets(info.targets)[name]
            allowed = rounding if name in MADE_OF_VALUES else 0.0
            if name in MADE_BY_THE_RULE:
                allowed = RULE_SENSITIVITY * rounding
            if name.startswith("normalized"):
                kept = state.rule.td_moments if "td" in name else state.rule.advantage_moments
                allowed = normalized_rounding(rounding, got, kept)
            report.check(f"targets/{name}", got, want, tolerances.values, allowed)

        # Advantages enter the actor-critic's loss as they are; Disco103's only through targets.
        loss_rounding = 0.0 if isinstance(kind.rule, DiscoRule) else rounding
        diagnostics = kind.rule.diagnostics(info.predictions, info.targets, rollout)
        logged = diagnostics | {f"loss/{k}": v for k, v in info.losses.items()}
        logged |= {"gradient_norm": info.gradient_norm, "update_norm": info.update_norm}
        for name, want in group(arrays, f"log_{i}").items():
            if name == "total_loss":
                report.check("total_loss", info.loss, want, tolerances.loss, loss_rounding)
            elif name in kind.log_names:
                got = logged[kind.log_names[name]]
                allowed = rounding if name in MADE_OF_VALUES else MEAN_ROUNDING
                if name in MEANS_OF_MADE_BY_THE_RULE:
                    allowed = max(MEAN_ROUNDING, RULE_SENSITIVITY * rounding)
                elif name == "normalized_td":
                    allowed = normalized_rounding(rounding, got, state.rule.td_moments)
                elif name == "global_gradient_norm":  # proportional to the advantages
                    largest = values.advantage.abs().max().clamp(min=rounding)
                    allowed = max(allowed, loss_rounding * float(got / largest))
                report.check(f"log/{name}", got, want, tolerances.values, allowed)

        check_rule_state(arrays, report, state.rule, i + 1, tolerances, rounding)
        is_last = i + 1 == num_steps
        for name, want in group(arrays, f"params_{i + 1}").items():
            ours = agent_name(name).replace("second", kind.second_head)
            quantity = f"params{'_final' if is_last else ''}"
            allowed = NOISE_MARGIN * float(noise[i][ours])
            report.check(quantity, state.params[ours], want.T, tolerances.params, allowed)


def learner_noise(
    agent: Agent, rule_params: Params, start: AgentState, rollouts: list[Rollout]
) -> list[Params]:
    """How far float32 runs are from the float64 one in each parameter, after each update."""

    def run(change: Callable[[Tensor], Tensor]) -> list[Params]:
        rule, state, data = tree.map(change, (rule_params, start, rollouts))
        after = []
        for rollout in data:
            state, _ = update_agent(agent, rule, state, rollout)
            after.append(state.params)
        return after

    exact, others = run(in_float64), jittered_runs(run)
    return [
        {k: torch.stack([(o[i][k] - p).abs().max() for o in others]).max() for k, p in want.items()}
        for i, want in enumerate(exact)
    ]


def check_rule_state(
    arrays: Arrays,
    report: Report,
    state: RuleState,
    step: int,
    tolerances: Tolerances,
    rounding: float,
) -> None:
    ours = {"adv_ema_state": state.advantage_moments, "td_ema_state": state.td_moments}
    for name, got in ours.items():
        if f"{name}_{step}/moment1" in arrays:
            want = moments_of(group(arrays, f"{name}_{step}"))
            weight = rounding * (1 - float(want.decay_product))
            spread = float(want.mean_square / (1 - want.decay_product)) ** 0.5
            allowed = {"mean": weight, "mean_square": 2 * spread * weight, "decay_product": 0.0}
            for part, limit in allowed.items():
                value = getattr(want, part).numpy()
                report.check(f"{name}/{part}", getattr(got, part), value, tolerances.values, limit)
    for part, want in group(arrays, f"meta_rnn_{step}/lstm/meta_rnn_state").items():
        got = getattr(state.lifetime_rnn, part)
        allowed = RULE_SENSITIVITY * rounding
        report.check(f"lifetime_rnn/{part}", got, want, tolerances.values, allowed)


def disco_targets(targets: DiscoTargets) -> dict[str, Tensor]:
    v = targets.values
    return {
        "adv": v.advantage,
        "normalized_adv": v.normalized_advantage,
        "qv_adv": v.qv_advantage,
        "normalized_qv_adv": v.normalized_qv_advantage,
        "q_target": v.q_target,
        "q_td": v.q_td,
        "normalized_q_td": v.normalized_q_td,
        "q_value": v.q_value,
        "meta_input_emb": targets.lifetime_input,
        "pi": targets.pi,
        "y": targets.y,
        "z": targets.z,
        "y_logsumexp": targets.y.logsumexp(-1),
        "z_logsumexp": targets.z.logsumexp(-1),
        "y_first8": targets.y[..., :8],
        "z_first8": targets.z[..., :8],
    }


DISCO_LOG_NAMES = {
    "logits": "logits",
    "entropy": "entropy",
    "y": "y",
    "y_hat": "y_hat",
    "z_hat": "z_hat",
    "pi_hat": "pi_hat",
    "y_entropy": "y_entropy",
    "z_entropy": "z_entropy",
    "pi_hat_entropy": "pi_hat_entropy",
    "aux_policy_entropy": "aux_pi_entropy",
    "aux_target_entropy": "next_policy_entropy",
    "pi_loss": "loss/pi",
    "aux_kl_loss": "loss/aux_pi",
    "q_loss": "loss/q",
    "q_target": "q_target",
    "agent_q_mean": "q_value",
    "td": "q_td",
    "normalized_td": "normalized_q_td",
    "global_gradient_norm": "gradient_norm",
    "global_update_norm": "update_norm",
}


def disco_rule(arrays: Arrays) -> tuple[DiscoRule, Params, Tolerances]:
    """The rule of a file, with the value head of its agent; Disco103 if the file brings none."""
    heads = [k for k in arrays if re.fullmatch(r"params_0/mlp/mlp_2/~/linear_\d+/b", k)]
    num_bins = len(arrays[max(heads, key=lambda k: int(k.split("linear_")[1][:-2]))])
    if rule_arrays := group(arrays, "meta_params"):
        sizes, rule_params = arrays_to_params(rule_arrays)
        tolerances = SMALL
    else:
        loaded = load_rule("disco103")
        sizes, rule_params, tolerances = loaded.rule.sizes, loaded.params, DISCO103
    rule = DiscoRule(sizes=sizes, value_head=unit_bins(num_bins), returns=SETTINGS.returns)
    return rule, rule_params, tolerances


def replay_disco_learner(arrays: Arrays, report: Report) -> None:
    rule, rule_params, tolerances = disco_rule(arrays)
    kind = LearnerKind(
        rule=rule,
        rule_params=rule_params,
        second_head="y",
        learning_rate=SETTINGS.disco_learning_rate,
        tolerances=tolerances,
        targets=disco_targets,
        log_names=DISCO_LOG_NAMES,
    )
    replay_learner(arrays, report, kind)


def replay_actor_critic_learner(arrays: Arrays, report: Report) -> None:
    def targets(targets: Targets[StateValues]) -> dict[str, Tensor]:
        v = targets.values
        return {
            "raw_advs": v.advantage,
            "normalized_advs": v.normalized_advantage,
            "tds": v.td,
            "normalized_tds": v.normalized_td,
            "value_target": v.value_target,
            "values": v.value,
        }

    num_bins = arrays["params_0/mlp/~_head_pass/torso_head_1/~/linear_0/b"].shape[0]
    kind = LearnerKind(
        rule=ActorCritic(
            num_bins=unit_bins(num_bins).num_bins,
            max_abs_value=unit_bins(num_bins).max_abs,
            returns=SETTINGS.returns,
        ),
        rule_params={},
        second_head="v",
        learning_rate=SETTINGS.actor_critic_learning_rate,
        tolerances=SMALL,
        targets=targets,
        log_names={
            "avg_value": "value",
            "entropy": "entropy",
            "logits": "logits",
            "pg_advs": "advantage",
            "raw_advs": "advantage",
            "global_gradient_norm": "gradient_norm",
            "global_update_norm": "update_norm",
        },
    )
    replay_learner(arrays, report, kind)


META_TOLERANCE = 1e-4  # of meta-gradients, relative to the largest entry of each array


def value_params(arrays: Arrays) -> Params:
    """Meta-value parameters from the reference's."""
    names = {"w": "weight", "b": "bias"}
    params = {}
    for name, array in arrays.items():
        if m := re.search(r"torso/~/linear_(\d+)/(w|b)$", name):
            ours = f"torso.mlp.layers.{m.group(1)}.{names[m.group(2)]}"
        else:
            ours = f"head.{names[name[-1]]}"
        params[ours] = torch.from_numpy(np.ascontiguousarray(array.T))
    return params


def meta_gradient_inputs(arrays: Arrays) -> tuple[Window, tuple, Tolerances]:
    """What a file gives to ``meta_gradient``, and how exact its results are."""
    rule, rule_params, tolerances = disco_rule(arrays)
    params = agent_params(group(arrays, "params_0"), "y")
    optimiser = adam_clip(SETTINGS.disco_learning_rate)
    agent = Agent(net_for(params, rule), rule, optimiser)
    targets = group(arrays, "target_params_0")
    start = initial_state(agent, params, agent_params(targets, "y") if targets else None)

    v_params = value_params(group(arrays, "value_params_0"))
    layers = [p for name, p in v_params.items() if name.endswith("bias") and "torso" in name]
    num_inputs = v_params["torso.mlp.layers.0.weight"].shape[1]
    torso = MLPTorso(
        num_inputs, [len(v_params[f"torso.mlp.layers.{i}.bias"]) for i in range(len(layers))]
    )
    meta_value = MetaValue(
        ValueNet(torso, torso.embedding_size),
        adam_clip(SETTINGS.value_learning_rate),
        SETTINGS.value_returns,
        aligned=False,
    )
    fresh = RuleState(moments.init_moments(), moments.init_moments())
    v_start = MetaValueState(v_params, meta_value.optimiser.init(v_params), fresh)
    rollouts = [
        rollout_of(group(arrays, f"train_rollout_{i}"))
        for i in range(count(arrays, "train_rollout"))
    ]
    valid = rollout_of(group(arrays, "valid_rollout"))
    window = Window(agent, meta_value, ObjectiveWeights())
    return window, (rule_params, start, v_start, rollouts, valid), tolerances


def through(window: Window, inputs: tuple, mode: MemoryMode) -> MetaGradient:
    """The meta-gradient for rule, agent, value function, training rollouts, validation rollout."""
    rule_params, state, value_state, training, validation = inputs
    source = GivenRollouts(training, validation)
    return meta_gradient(window, rule_params, state, value_state, source, mode)


def replay_meta_gradient(arrays: Arrays, report: Report) -> None:
    """Meta-loss and meta-gradient through some updates, in every memory mode."""
    window, inputs, tolerances = meta_gradient_inputs(arrays)
    noise = float32_noise(window, inputs)
    for mode in get_args(MemoryMode):
        result = through(window, inputs, mode)
        check_meta_gradient(arrays, report, result, noise, mode, tolerances)


def float32_noise(window: Window, inputs: tuple) -> tuple[Params, dict[str, float]]:
    """How far a float32 run may be from another: absolutely in each of the agent's parameters after
    the last update, relatively in the meta-gradient of each module of the rule.

    Where a gradient is nothing but rounding, the derivative of Adam's step is enormous: some
    meta-gradients have two good digits. Measured against the float64 run, which equals the
    reference's in float64 (tests/discovery/test_against_reference.py).
    """

    def run(change: Callable[[Tensor], Tensor]) -> MetaGradient:
        return through(window, tree.map(change, inputs), "plain")

    exact = run(in_float64)
    in_params = {k: torch.zeros(()) for k in exact.life.agents.params}
    in_gradient: dict[str, float] = {}
    for other in jittered_runs(run):
        for name, p in other.life.agents.params.items():
            distance = (p - exact.life.agents.params[name]).abs().max()
            in_params[name] = torch.maximum(in_params[name], distance)
        for name, got in other.gradient.items():
            want = exact.gradient[name]
            error = float((got - want).abs().max() / want.abs().max().clamp(min=1e-12))
            module = reference_name(name).rsplit("/", 1)[0]
            in_gradient[module] = max(in_gradient.get(module, 0.0), error)
    return in_params, in_gradient


def check_meta_gradient(
    arrays: Arrays,
    report: Report,
    result: MetaGradient,
    noise: tuple[Params, dict[str, float]],
    mode: str,
    tolerances: Tolerances,
) -> None:
    noise_in_params, noise_in_gradient = noise
    loss, want = result.loss, arrays["meta_loss"]
    report.check(f"{mode}/meta_loss", loss, want, tolerances.values, MEAN_ROUNDING)
    logged = {
        "adv": result.values.advantage.mean(),
        "normalized_adv": result.values.normalized_advantage.mean(),
        "value": result.values.value.mean(),
        "pg": result.policy_loss,
        "reg": result.regulariser,
    }
    rounding = value_rounding(result.values.value)
    for name, want in group(arrays, "meta_log").items():
        made_of_values = name in ("adv", "normalized_adv", "value")
        allowed = rounding if made_of_values else MEAN_ROUNDING
        report.check(f"{mode}/log/{name}", logged[name], want, tolerances.values, allowed)
    for name, want in group(arrays, "params_final").items():
        ours = agent_name(name).replace("second", "y")
        allowed = NOISE_MARGIN * float(noise_in_params[ours])
        got = result.life.agents.params[ours]
        report.check(f"{mode}/params_final", got, want.T, tolerances.params, allowed)
    final = value_params(group(arrays, "value_params_final"))
    for name, want in final.items():
        got = result.life.values.params[name]
        report.check(f"{mode}/value_params_final", got, want.numpy(), tolerances.params)

    gradient = {k: torch.from_numpy(v) for k, v in params_to_arrays(result.gradient).items()}
    parts: dict[str, Callable[[Tensor, int], Tensor]] = {
        "meta_grads": lambda x, _: x,
        "meta_grads_norm": lambda x, _: x.norm(),
        "meta_grads_first32": lambda x, size: x.flatten()[:size],
    }
    for part, of in parts.items():
        for name, want in group(arrays, part).items():
            largest = float(np.abs(want).max()) if want.size else 0.0
            allowed = NOISE_MARGIN * noise_in_gradient[name.rsplit("/", 1)[0]] * largest
            got = of(gradient[name], want.size)
            report.check(f"{mode}/{part}/{name}", got, want, META_TOLERANCE, allowed)


# --- the script ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """A kind of golden file."""

    name: str
    replay: Callable[[Arrays, Report], None]
    must_compare: str
    """What a replay compares at the least (a regular expression); a file without proves nothing."""


def recognise(arrays: Arrays) -> Kind:
    """The kind of a golden file, from the arrays it has."""
    if group(arrays, "valid_rollout"):
        return Kind("meta-gradient", replay_meta_gradient, r"\w+/meta_grads(_norm)?/.*")
    if group(arrays, "retrace_0"):
        return Kind("value estimation", replay_value_estimation, "retrace_0/adv")
    if "out/loss_per_step" in arrays:
        return Kind("policy gradient", replay_policy_gradient, "loss_per_step")
    if "params_0/mlp/action_cond/linear/w" in arrays:
        return Kind("disco learner", replay_disco_learner, "params_final")
    if "params_0/mlp/~_head_pass/torso_head_1/~/linear_0/w" in arrays:
        return Kind("actor-critic learner", replay_actor_critic_learner, "params_final")
    raise DiscorlError("not a kind of golden file that is known")


def replay(path: Path) -> Report:
    """Replay one file."""
    arrays = load(path)
    kind = recognise(arrays)
    report = Report(path.name, kind.name)
    kind.replay(arrays, report)
    if not any(re.fullmatch(kind.must_compare, quantity) for quantity in report.worst):
        raise DiscorlError(f"the file has no result to compare: {kind.must_compare}")
    return report


def main(paths: list[str]) -> int:
    if not paths:
        print(__doc__)
        return 2
    failed = False
    for path in paths:
        try:
            report = replay(Path(path))
        except Exception as e:  # whatever is wrong with one file, the others are replayed
            told = isinstance(e, DiscorlError | AssertionError)
            print(f"{Path(path).name}: FAIL: {e if told else f'{type(e).__name__}: {e}'}")
            failed = True
            continue
        report.show()
        failed |= bool(report.failures)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
