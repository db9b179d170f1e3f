"""metrics.jsonl."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from discorl.errors import DiscorlError
from discorl.runs.metrics import (
    MAX_LINE_BYTES,
    Due,
    MetricsFile,
    Rewound,
    Rows,
    name_steps,
    read_rows,
    rewind,
)
from discorl.training.stats import replay_age
from discorl.training.train import train
from tests.builders import write_small_rule
from tests.training.test_resume import config


def rows_of(*steps: int) -> list[dict[str, Any]]:
    return [{"step": step, "loss": step / 7} for step in steps]


def test_rows_are_there_as_soon_as_written(tmp_path: Path) -> None:
    log = MetricsFile(tmp_path / "m.jsonl")
    for row in rows_of(1, 2):
        log.write(row)
    assert read_rows(tmp_path / "m.jsonl") == rows_of(1, 2)
    log.close()


def write(path: Path, *steps: int, end: str = "") -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows_of(*steps)) + end)
    return path


def test_rewinding(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", 4, 8, 10, 12, 16, end='{"step": 20, "lo')
    left = rewind(path, 13, Due([4]), last=20)
    assert left == Rewound(12), "10 was the end of a shorter run"
    assert read_rows(path) == rows_of(4, 8, 12)
    assert rewind(path, 0, Due([4]), last=20) == Rewound()
    assert path.read_bytes() == b""
    assert rewind(tmp_path / "new.jsonl", 0, Due([1]), last=1) == Rewound()


def test_what_stays_is_not_touched(tmp_path: Path) -> None:
    """Not even how it is written, which another version may have done differently."""
    path = tmp_path / "m.jsonl"
    text = '{"step":1,"loss":1e-05}\n{"step": 2, "loss": NaN}\n'
    path.write_text(text)
    rewind(path, 2, Due([1]), last=2)
    assert path.read_text() == text


@pytest.mark.parametrize(
    "steps, until, every, gaps",
    [
        ((4, 8, 12), 12, [4], []),
        ((4, 8, 12), 15, [4], []),
        ((), 3, [4], []),
        ((4, 8, 12, 14), 14, [4], []),  # the last step has a row of its own
        ((4, 8, 10, 12), 12, [4], []),  # so had the end of a shorter run
        ((3, 5, 6, 9, 10), 11, [3, 5], []),
        ((4, 16), 16, [4], [(8, 12)]),
        ((4, 12), 12, [4], [(8, 8)]),
        ((8, 20), 20, [4], [(4, 4), (12, 16)]),
        ((4,), 12, [4], [(8, 12)]),
        ((), 8, [4], [(4, 8)]),
        ((3, 9, 10), 11, [3, 5], [(5, 6)]),
        ((4, 8, 12, 8, 12), 12, [4], []),  # written again
        ((1, 100), 100, [], []),  # nobody knows what was due
    ],
)
def test_gaps_are_what_was_due_and_is_not_there(
    steps: tuple[int, ...], until: int, every: list[int], gaps: list, tmp_path: Path
) -> None:
    assert Due(every).gaps(steps, until) == gaps
    if every:
        left = rewind(write(tmp_path / "m.jsonl", *steps), until, Due(every), last=until)
        assert left.new_gaps == gaps


def test_a_gap_is_marked_for_ever_and_said_once(tmp_path: Path) -> None:
    path = write(tmp_path / "m.jsonl", 2, 8, 10)
    left = rewind(path, 16, Due([2]), last=20)
    assert left == Rewound(10, (12, 16), [(4, 6), (12, 16)])
    plain, marked, last = rows_of(2, 8, 10)
    assert read_rows(path) == [plain, marked | {"gap": [4, 6]}, last]
    before = path.read_bytes()
    assert rewind(path, 10, Due([2]), last=20) == Rewound(10)
    assert path.read_bytes() == before


def test_what_is_due_is_read_from_the_configuration() -> None:
    assert Due.of({"log_every": 3, "eval_every": 5}) == Due([3, 5])
    assert Due.of({}) == Due([])
    for nonsense in (0, -1, "3", None, 1.5, True, [3]):
        assert Due.of({"log_every": nonsense}) == Due([])


def test_gaps_in_words() -> None:
    gaps = [(1, 1), (3, 5), (7, 7), (9, 9), (11, 12)]
    assert name_steps(gaps[:1]) == "step 1"
    assert name_steps(gaps[:2]) == "step 1 and steps 3 to 5"
    assert name_steps(gaps) == "step 1, steps 3 to 5, step 7 and 2 more gaps"


def test_a_line_of_any_length_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    long = json.dumps({"step": 2, "note": "x" * MAX_LINE_BYTES})
    path.write_text('{"step": 1}\n' + long + "\n")
    with pytest.raises(DiscorlError, match=r"damaged at line 2: it is longer than 1,048,576 bytes"):
        read_rows(path)
    deep = '{"step": 2, "note": ' + "[" * 100_000 + "]" * 100_000 + "}"
    path.write_text('{"step": 1}\n' + deep + "\n")
    with pytest.raises(DiscorlError, match="damaged at line 2: it is not JSON"):
        read_rows(path)


def test_rows_are_read_anew_by_every_loop(tmp_path: Path) -> None:
    rows = Rows(write(tmp_path / "m.jsonl", 1, 2))
    assert list(rows) == list(rows) == rows_of(1, 2)
    write(tmp_path / "m.jsonl", 3)
    assert list(rows) == rows_of(3)
    assert list(Rows(tmp_path / "none")) == []


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(DiscorlError, match="damaged at line 2: it is not JSON"):
        read_rows(tmp_path / "m.jsonl")


@pytest.mark.parametrize(
    "line, says",
    [
        ("3", "it is not an object"),
        ('{"loss": 1}', "it has no step"),
        ('{"step": "1"}', "it has no step"),
        ('{"step": -1}', "it has no step"),
        ('{"step": 1' + "0" * 400 + "}", "it has no step"),
    ],
)
def test_a_line_without_a_step_is_named(line: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text(f'{{"step": 1}}\n{line}\n')
    with pytest.raises(DiscorlError, match=f"damaged at line 2: {says}"):
        rewind(tmp_path / "m.jsonl", 1, Due([1]), last=1)


def test_a_full_disk_is_one_message(tmp_path: Path) -> None:
    """/dev/full refuses every byte, as a full disk does."""
    (tmp_path / "m.jsonl").symlink_to("/dev/full")
    log = MetricsFile(tmp_path / "m.jsonl")
    with pytest.raises(DiscorlError, match=r"No space left on device; free some space.*--resume"):
        log.write({"step": 1})
    log.close()
    with pytest.raises(DiscorlError, match="cannot write"):
        MetricsFile(tmp_path)


def test_what_a_row_tells(tmp_path: Path) -> None:
    rule = str(write_small_rule(tmp_path / "rule.npz"))
    rows = train(config(tmp_path / "run", rule=rule)).metrics
    assert {
        *("step", "env_steps", "seconds", "steps_per_second", "env_steps_per_second", "episodes"),
        *("return", "length", "success", "loss", "gradient_norm", "update_norm", "replay/age"),
        *("loss/pi", "loss/y", "loss/z", "loss/q", "loss/aux_pi"),
        *("rule/entropy", "rule/y_entropy", "rule/z_entropy", "rule/target_kl"),
    } <= rows[-2].keys()
    # 2 trajectories come in at each step: after step 4 there are two of each age from 0 to 3.
    assert [row["replay/age"] for row in rows] == [1.5, *[2.5] * 5]


def test_replay_age() -> None:
    for size in range(12):
        ages = [i // 3 for i in range(size)]
        drawn = sum(ages) / max(size, 1)
        assert replay_age(size, 3, num_fresh=0, batch_size=4) == pytest.approx(drawn)
        assert replay_age(size, 3, num_fresh=3, batch_size=4) == pytest.approx(drawn / 4)
    # Two of the newest rollout are not enough for three fresh ones.
    assert replay_age(10, 2, num_fresh=3, batch_size=3) == pytest.approx(1 / 3)
