"""The drop-in API: your own agent, your own environment loop, and a discovered rule to learn by.

    trainer = discorl.DiscoTrainer(agent)
    rollout, obs, state = discorl.collect_rollout(agent, step_fn, obs, state, rollout_len=29)
    logs = trainer.step(rollout)

``agent`` is any ``nn.Module`` that keeps one of the contracts in ``contract.py``. ``DiscoTrainer``
owns the optimiser, the replay, the target network and the rule's memory. Whoever owns these too
takes the loss alone, from ``DiscoUpdateRule.loss``.
"""

from discorl.trainer.collect import AgentRollout, collect_rollout
from discorl.trainer.module_net import ModuleNet
from discorl.trainer.trainer import DiscoTrainer
from discorl.trainer.update_rule import DiscoUpdateRule, RuleLoss

__all__ = [
    "AgentRollout",
    "DiscoTrainer",
    "DiscoUpdateRule",
    "ModuleNet",
    "RuleLoss",
    "collect_rollout",
]
