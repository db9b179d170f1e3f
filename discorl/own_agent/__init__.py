"""The drop-in API: your own agent, your own environment loop, and a discovered rule to learn by.

    trainer = discorl.DiscoTrainer(agent)
    rollout, obs, state = discorl.collect_rollout(agent, step_fn, obs, state, rollout_len=29)
    logs = trainer.step(rollout)

``agent`` is any ``nn.Module`` that keeps one of the contracts in ``contract.py``. ``DiscoTrainer``
owns the optimiser, the replay, the target network and the rule's memory. Whoever owns these too
takes the loss alone, from ``DiscoUpdateRule.loss``.

Code written for disco-torch's ``DiscoTrainer`` and ``collect_rollout`` runs with the import line
changed; replay, batches, optimiser and counters are the same. On purpose different:

- Numbers are the JAX reference's. disco-torch's Retrace reads trace and value one step late.
- The replay keeps the behaviour's logits alone, not y, z, q and aux_pi of every action.
- The state of a trainer holds the agent, the replay and the random numbers too.
- ``total_loss`` is there from the first step, as NaN until there is a loss.
- Settings of the rule are fields of ``DiscoRule``, not a dict of hyper-parameters.
"""

from discorl.own_agent.collect import AgentRollout, collect_rollout
from discorl.own_agent.module_net import ModuleNet
from discorl.own_agent.trainer import DiscoTrainer
from discorl.own_agent.update_rule import DiscoUpdateRule, RuleLoss

__all__ = [
    "AgentRollout",
    "DiscoTrainer",
    "DiscoUpdateRule",
    "ModuleNet",
    "RuleLoss",
    "collect_rollout",
]
