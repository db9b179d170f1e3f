"""What an estimator is: from a window of updates to a gradient of the rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol

from torch import Tensor

from discorl.meta.life import Earlier, Life, Source, W
from discorl.meta.window import Window
from discorl.types import Params, Values


@dataclass(frozen=True, kw_only=True)
class Estimate(Generic[W]):
    """What a window says of the rule, and the agents after it."""

    loss: Tensor  # [] or [P]
    gradient: Params  # what the rule descends
    life: Life[W]
    earlier: Earlier = ()  # for the next window, as many as were given


@dataclass(frozen=True, kw_only=True)
class MetaGradient(Estimate[W]):
    """An estimate by differentiation of what judges the updated agents."""

    policy_loss: Tensor
    regulariser: Tensor
    values: Values


class Estimator(Protocol):
    """A way to estimate the gradient of the rule. It need not differentiate anything.

    With ``Window.each = tree.vmap`` everything has a leading axis of agents, the rule's parameters
    and their gradient too: one gradient for each agent.
    """

    def __call__(
        self,
        window: Window,
        rule_params: Params,
        life: Life[W],
        source: Source[W],
        earlier: Earlier = (),
    ) -> Estimate[W]:
        """Let the agents live for ``source.num_updates`` updates, and say how to move the rule.

        ``earlier`` are the updates that led to ``life``, for estimators that go back through them.
        """
        ...
