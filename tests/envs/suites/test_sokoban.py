from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import VectorEnv

from discorl.envs.suites import sokoban
from discorl.envs.suites.sokoban_levels import parse_levels, read_levels
from discorl.errors import DiscorlError
from tests.envs.suites.sokoban_generator import generate, write_level
from tests.envs.suites.streams import check, make, play

UP, DOWN, LEFT, RIGHT = range(4)
LEVEL = """\
; 0
######
#@$ .#
#  $ #
#.   #
######
"""


def on(tmp_path: Path, text: str, **options: Any) -> VectorEnv:
    path = tmp_path / "levels.txt"
    path.write_text(text)
    return make(f"sokoban:{path}", **options)


def test_sokoban() -> None:
    stream = check("sokoban")
    assert stream.observations[0].shape == (2, 4, 10, 10)
    assert stream.observations[0].dtype == np.uint8


def test_planes(tmp_path: Path) -> None:
    board = on(tmp_path, LEVEL).reset(seed=0)[0][0]
    assert np.argwhere(board[1]).tolist() == [[1, 4], [3, 1]]
    assert np.argwhere(board[2]).tolist() == [[1, 2], [2, 3]]
    assert np.argwhere(board[3]).tolist() == [[1, 1]]
    assert (board[0] > 0).sum() == 18 and set(np.unique(board)) == {0, 255}


def test_a_level_solved_by_hand(tmp_path: Path) -> None:
    """The upper box goes right twice, the lower one down and left twice."""
    way = [RIGHT, RIGHT, DOWN, UP, RIGHT, DOWN, DOWN, LEFT, LEFT]
    stream = play(on(tmp_path, LEVEL), 5, actions=[[a] for a in way])
    gains = [float(r[0]) for r in stream.rewards]
    # Two pushes right place a box; 'down' pushes the other to the wall, 'up' goes back,
    # 'right' finds a box on its target, with the wall behind it.
    assert gains == pytest.approx([-0.1, 0.9, -0.1, -0.1, -0.1])
    boards = [x[0] for x in stream.observations]
    assert np.argwhere(boards[2][2]).tolist() == [[1, 4], [2, 3]]
    assert np.argwhere(boards[3][2]).tolist() == [[1, 4], [3, 3]]
    assert np.argwhere(boards[5][3]).tolist() == [[1, 3]], "the box does not move, nor the player"


def test_the_end_of_a_level(tmp_path: Path) -> None:
    envs = on(tmp_path, ";\n#####\n#@$.#\n#   #\n#####\n")
    stream = play(envs, 2, actions=[[RIGHT], [DOWN]])
    assert stream.rewards[0][0] == pytest.approx(-0.1 + 1 + 10)
    assert stream.terminated[0][0] and not stream.truncated[0][0]
    assert np.array_equal(stream.observations[1], stream.observations[0]), "it begins again"
    assert np.argwhere(stream.infos[1]["final_obs"][0][2]).tolist() == [[1, 3]]


def test_pushing_a_box_off_its_target_costs_what_it_gave(tmp_path: Path) -> None:
    envs = on(tmp_path, ";\n######\n#@* $#\n#   .#\n######\n")
    stream = play(envs, 1, actions=[[RIGHT]])
    assert stream.rewards[0][0] == pytest.approx(-1.1)


def test_two_boxes_in_a_row_do_not_move(tmp_path: Path) -> None:
    envs = on(tmp_path, ";\n#######\n#@$$ .#\n#    .#\n#######\n")
    stream = play(envs, 1, actions=[[RIGHT]])
    assert np.array_equal(stream.observations[0], stream.observations[1])


def test_time_runs_out(tmp_path: Path) -> None:
    stream = play(on(tmp_path, LEVEL, max_steps=3), 3, actions=[[UP]] * 3)
    assert [bool(t[0]) for t in stream.truncated] == [False, False, True]
    assert not stream.terminated[2][0]


def test_generated_levels_are_solved_by_their_solution() -> None:
    random = np.random.default_rng(5)
    for _ in range(5):
        level, actions = generate(random)
        env = sokoban.Sokoban([level], max_steps=1000)
        env.reset(seed=0)
        steps = [env.step(action) for action in actions]
        assert [s[2] for s in steps] == [False] * (len(actions) - 1) + [True]
        assert sum(s[1] for s in steps) == pytest.approx(4 + 10 - 0.1 * len(actions))
        assert len(actions) <= 100


def test_the_levels_that_come_along_are_generated() -> None:
    levels = read_levels(sokoban.LEVELS)
    assert len(levels) == 200
    assert all(level.boxes.sum() == 4 and level.walls.shape == (10, 10) for level in levels)
    random = np.random.default_rng(0)
    for level in levels[:3]:
        assert write_level(generate(random)[0]) == write_level(level)


def test_writing_and_reading_agree() -> None:
    text = "######\n#+$  #\n# *.$#\n######\n"
    (level,) = parse_levels(text, "here")
    assert write_level(level) == text
    assert level.player == (1, 1)


def test_a_folder_of_files(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "b.txt").write_text(LEVEL + LEVEL.replace("; 0", "; 1"))
    (tmp_path / "inner" / "a.txt").write_text(LEVEL)
    assert len(read_levels(tmp_path)) == 3


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "contains no Sokoban levels"),
        ("#####\n#@$ #\n#####\n", "as many boxes as targets"),
        ("#####\n# $.#\n#####\n", "needs exactly one player"),
        ("#####\n#@ $.\n#####\n", "not enclosed"),
        ("####\n#@$.#\n#####\n", "rows of different lengths"),
        ("#####\n#x$.#\n#####\n", "contains .'x'."),
        (LEVEL + ";\n#####\n#@$.#\n#####\n", "differ in size"),
    ],
)
def test_bad_levels(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(DiscorlError, match=said):
        on(tmp_path, text)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(DiscorlError, match="no such file or folder"):
        make(f"sokoban:{tmp_path / 'none'}")


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "levels.txt").write_bytes(b"\xff\xfe#\x00")
    with pytest.raises(DiscorlError, match=r"levels\.txt is not UTF-8 text"):
        make(f"sokoban:{tmp_path}")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "levels.txt").mkdir()
    with pytest.raises(DiscorlError, match=r"cannot read the Sokoban levels in .*levels\.txt: "):
        make(f"sokoban:{tmp_path}")
