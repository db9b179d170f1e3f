"""What the attacks counted is said at the end of a run of the tests."""

from __future__ import annotations

import pytest

TABLES = pytest.StashKey[list[str]]()


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for table in config.stash.get(TABLES, []):
        terminalreporter.section("attacks")
        terminalreporter.write_line(table)
