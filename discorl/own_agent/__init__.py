"""The drop-in API: your own agent, your own environment loop, and a discovered rule to learn by.

    trainer = discorl.DiscoTrainer(agent)
    rollout, obs, state = discorl.collect_rollout(agent, step_fn, obs, state, rollout_len=29)
    logs = trainer.step(rollout)

``agent`` is any ``nn.Module`` that follows a contract in ``contract.py``. ``DiscoTrainer`` owns the
optimiser, the replay, the target network and the rule's memory. If you have your own optimiser and
replay, take just the loss, from ``DiscoUpdateRule.loss``.

Code written for disco-torch's ``DiscoTrainer`` and ``collect_rollout`` runs with the import line
changed, with all their arguments (``disco_torch.py``). Replay, batches, optimiser and counters are
the same. What differs, on purpose:

- Numbers are the JAX reference's. disco-torch's Retrace reads trace and value one step late.
- The replay keeps only the behaviour's logits, not y, z, q and aux_pi of every action.
- A trainer's state also holds the agent, the replay and the random number generators.
- ``total_loss`` is there from the first step; it is NaN until there is a loss.
- A rollout is a ``Rollout``. Its parts can be read as those of a dict, but not be changed.
- ``collect_rollout`` takes no other discount than its default, which does nothing there either.
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
