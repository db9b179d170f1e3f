"""Our results for files of learner steps: targets, logs, states and parameters after each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from discorl.agents.agent import Agent, adam_clip
from discorl.agents.network import with_params
from discorl.agents.update import update_agent
from discorl.rules import ActorCritic, UpdateRule
from discorl.types import (
    ActionValues,
    DiscoTargets,
    Params,
    Rollout,
    RuleState,
    StateValues,
    Targets,
    UpdateInfo,
)

from .agents import (
    SETTINGS,
    agent_name,
    agent_params,
    disco_rule,
    in_precision_of,
    initial_state,
    net_for,
    transposed,
    unit_bins,
)
from .files import Arrays, count, group, rollout_of
from .values import Results


@dataclass(frozen=True)
class Learner:
    """What tells one kind of learner file from another."""

    rule: UpdateRule
    rule_params: Params
    second_head: str
    learning_rate: float
    targets: Callable[[Any], Results]
    log_names: dict[str, str]
    """The reference's name of each quantity it logs -> ours."""


def disco(arrays: Arrays) -> Results:
    rule, rule_params = disco_rule(arrays)
    learner = Learner(
        rule, rule_params, "y", SETTINGS.disco_learning_rate, disco_targets, DISCO_LOG_NAMES
    )
    return steps(arrays, learner)


def actor_critic(arrays: Arrays) -> Results:
    num_bins = arrays["params_0/mlp/~_head_pass/torso_head_1/~/linear_0/b"].shape[0]
    head = unit_bins(num_bins)
    rule = ActorCritic(num_bins=head.num_bins, max_abs_value=head.max_abs, returns=SETTINGS.returns)
    learner = Learner(
        rule,
        {},
        "v",
        SETTINGS.actor_critic_learning_rate,
        actor_critic_targets,
        ACTOR_CRITIC_LOG_NAMES,
    )
    return steps(arrays, learner)


def steps(arrays: Arrays, learner: Learner) -> Results:
    params = agent_params(group(arrays, "params_0"), learner.second_head)
    target_arrays = group(arrays, "target_params_0")
    target_params = agent_params(target_arrays, learner.second_head) if target_arrays else None
    optimiser = adam_clip(learner.learning_rate)
    agent = Agent(net_for(params, learner.rule), learner.rule, optimiser)
    state = in_precision_of(arrays, initial_state(agent, params, target_params))

    found: Results = {}
    if group(arrays, "agent_out_0"):
        observations = rollout_of(group(arrays, "rollout_0")).observations
        rows = observations.flatten(0, 1)
        output = with_params(agent.net, params, lambda net: net.output(rows))
        for name in group(arrays, "agent_out_0"):
            heads = getattr(output, name).unflatten(0, observations.shape[:2])
            found[f"agent_out_0/{name}"] = heads
    for i in range(count(arrays, "rollout")):
        rollout = rollout_of(group(arrays, f"rollout_{i}"))
        state, info = update_agent(agent, learner.rule_params, state, rollout)
        targets = learner.targets(info.targets)
        found |= {f"targets_{i}/{name}": x for name, x in targets.items()}
        found |= {f"log_{i}/{name}": x for name, x in logged(learner, info, rollout).items()}
        found |= rule_state(state.rule, i + 1)
        for name in group(arrays, f"params_{i + 1}"):
            ours = agent_name(name).replace("second", learner.second_head)
            found[f"params_{i + 1}/{name}"] = transposed(state.params[ours])
    return found


def logged(learner: Learner, info: UpdateInfo, rollout: Rollout) -> Results:
    ours = dict(learner.rule.diagnostics(info.predictions, info.targets, rollout))
    ours |= {f"loss/{k}": v for k, v in info.losses.items()}
    ours |= {"gradient_norm": info.gradient_norm, "update_norm": info.update_norm}
    found = {name: ours[our_name] for name, our_name in learner.log_names.items()}
    return found | {"total_loss": info.loss}


def rule_state(state: RuleState, step: int) -> Results:
    found: Results = {}
    both = {"adv_ema_state": state.advantage_moments, "td_ema_state": state.td_moments}
    for name, moments in both.items():
        parts = (moments.mean, moments.mean_square, moments.decay_product)
        for part, x in zip(("moment1", "moment2", "decay_product"), parts, strict=True):
            found[f"{name}_{step}/{part}"] = x
    if state.lifetime_rnn is not None:
        for part in ("hidden", "cell"):
            x = getattr(state.lifetime_rnn, part)
            found[f"meta_rnn_{step}/lstm/meta_rnn_state/{part}"] = x
    return found


def disco_targets(targets: DiscoTargets) -> Results:
    """Those of a whole rule, as the reference's are."""
    v, y, z = targets.values, targets.y, targets.z
    assert isinstance(v, ActionValues)
    assert y is not None and z is not None and targets.lifetime_input is not None
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
        "y": y,
        "z": z,
        "y_logsumexp": y.logsumexp(-1),
        "z_logsumexp": z.logsumexp(-1),
        "y_first8": y[..., :8],
        "z_first8": z[..., :8],
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


def actor_critic_targets(targets: Targets[StateValues]) -> Results:
    v = targets.values
    return {
        "raw_advs": v.advantage,
        "normalized_advs": v.normalized_advantage,
        "tds": v.td,
        "normalized_tds": v.normalized_td,
        "value_target": v.value_target,
        "values": v.value,
    }


ACTOR_CRITIC_LOG_NAMES = {
    "avg_value": "value",
    "entropy": "entropy",
    "logits": "logits",
    "pg_advs": "advantage",
    "raw_advs": "advantage",
    "global_gradient_norm": "gradient_norm",
    "global_update_norm": "update_norm",
}
