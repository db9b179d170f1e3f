"""What a suite is, and how copies of its tasks are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from discorl.envs.base import check_copies
from discorl.envs.suites.packages import is_installed
from discorl.envs.suites.suite_settings import SuiteSettings, at_least
from discorl.errors import DiscorlError

if TYPE_CHECKING:
    from gymnasium.vector import VectorEnv


@dataclass(frozen=True)
class Suite:
    """A family of tasks called ``PREFIX`` or ``PREFIX:NAME``."""

    pattern: str
    """How its task names are written, for people."""
    description: str
    title: str
    """Its name, for people."""
    settings: type[SuiteSettings] | None = None
    """The options of its tasks; None if there are none."""
    module: str = ""
    """The name of the module here, and of the extra, if it differs from the prefix."""
    package: str = ""
    """The package that ``pip install 'discorl[EXTRA]'`` provides; '' if none is needed."""
    note: str = ""
    """What pip alone does not do."""
    image_layout: Literal["", "channels-first", "channels-last"] = ""
    """Where the channels of its images are; '' if that depends on the task."""
    num_frames: int = 0
    """Frames in an observation unless told otherwise; 0 if frames cannot be stacked."""
    is_threaded: bool = False
    """Its copies play in threads of C++, and need no processes."""
    autoreset: str = ""
    """How those reset themselves; '' where both ways are possible."""

    @property
    def prefix(self) -> str:
        """What the names of its tasks begin with."""
        return self.pattern.partition(":")[0].rstrip("[")

    @property
    def extra(self) -> str:
        """What to install it with; '' if nothing need be."""
        return (self.module or self.prefix) if self.package else ""

    @property
    def hint(self) -> str:
        """How to install it; '' if nothing need be."""
        return f"pip install 'discorl[{self.extra}]'" + self.note if self.extra else ""

    def installed(self) -> bool:
        """Whether the package that it needs is there."""
        return not self.package or is_installed(self.package)

    def load(self) -> ModuleType:
        """Its module, whose package must be installed.

        A threaded one has ``make(name, num_envs, settings, stack)``, which makes a vector
        environment; others have ``factory(name, settings)``, which gives what makes one copy.
        """
        if not self.installed():
            raise DiscorlError(
                f"{self.title} needs the package {self.package}, which is not installed: "
                f"{self.hint}"
            )
        return import_module(f"discorl.envs.suites.{self.module or self.prefix}")

    def make(
        self,
        task: str,
        num_envs: int,
        options: SuiteSettings | Mapping[str, Any] | None = None,
        *,
        stack: int | None = None,
        processes: bool = False,
        next_step: bool = False,
    ) -> VectorEnv:
        """Copies of ``task``, prefix included; with ``processes``, each in one if that helps.

        Observations show the last ``stack`` frames, oldest first. With ``next_step`` a step is
        spent on resetting; some suites always do that. ``options`` are the suite's settings, or a
        mapping of them, which may also hold these three.
        """
        if isinstance(options, Mapping):
            run: dict[str, Any] = {"stack": stack, "processes": processes, "next_step": next_step}
            own = {name: value for name, value in options.items() if name not in run}
            run |= {name: value for name, value in options.items() if name in run}
            return self.make(task, num_envs, self._read(own), **run)
        if next_step and self.autoreset == "same-step":
            raise DiscorlError(
                f"{self.title} always resets in the step that ends an episode: remove --autoreset"
            )
        module, name = self.load(), task.partition(":")[2]
        settings = options if options or not self.settings else self.settings()
        check_copies(num_envs)
        if stack is None:
            stack = self.num_frames or 1
        elif not self.num_frames:
            raise DiscorlError(f"{self.title} does not stack frames: remove the option 'stack'")
        at_least(1, stack=stack)
        if self.is_threaded:
            return module.make(name, num_envs, settings, stack)

        from discorl.envs.suites.copies import stack_frames, vectorise  # late: Gymnasium is slow

        envs = vectorise([module.factory(name, settings)] * num_envs, processes, next_step)
        return stack_frames(envs, stack, 2 if self.image_layout == "channels-last" else 0)

    def _read(self, given: Mapping[str, Any]) -> SuiteSettings | None:
        known = [field.name for field in fields(self.settings)] if self.settings else []
        for name in given:
            if name not in known:
                use = f"use {', '.join(known)}" if known else "it has no options"
                raise DiscorlError(f"{self.title} has no option '{name}': {use}")
        return self.settings(**given) if self.settings else None
