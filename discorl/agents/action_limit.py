"""How many actions an agent can have before its updates take longer than anyone would wait."""

from __future__ import annotations

from discorl.errors import DiscorlError
from discorl.rules.base import UpdateRule

MAX_READ = 1024
"""For rules that read predictions of every action: the work grows with each of them."""
MAX_CHOICES = 100_000
"""For rules that only have a policy over them."""
BYTES_READ = 1000
"""What an update holds for one action in one time step, at least: what such a rule reads of it, and
the layers of the rule's network. Measured with Disco103, between 900 and 2300."""
BYTES_OF_CHOICE = 16
"""The same where there is only a logit, with its gradient and its softmax."""


def check_num_actions(rule: UpdateRule, num_actions: int, num_steps: int, batch_size: int) -> None:
    """Raise if there are too many actions for a rule to learn in sensible time and memory."""
    reads = bool(rule.heads(num_actions).per_action)
    limit = MAX_READ if reads else MAX_CHOICES
    if num_actions <= limit:
        return
    size = num_steps * batch_size * num_actions * (BYTES_READ if reads else BYTES_OF_CHOICE) / 1e9
    others = ", or use --rule actor-critic, which does not look at each action" if reads else ""
    raise DiscorlError(
        f"the environment has {num_actions} actions, but the limit is {limit}: an update of "
        f"{batch_size} trajectories of {num_steps} steps would need about {size:.1f} GB of memory "
        f"and many minutes. Wrap the environment to offer fewer actions{others}"
    )
