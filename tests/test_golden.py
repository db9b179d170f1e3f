"""Parity with the JAX reference, and that the replay script notices when there is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from discorl.errors import DiscorlError
from tests.builders import GOLDEN, double, run_python
from tests.golden.agents import agent_params, disco_rule, net_for
from tests.golden.files import Arrays, group, inputs_of, load, load_results_for
from tests.golden.kinds import recognise
from tests.golden.replay import replay, replay_arrays
from tests.golden.tolerances import Limits, published
from tests.golden_files import IN_FLOAT64, OTHER_SIZES, PATHS, each, needs_disco103

SCRIPT = Path(__file__).parent / "golden_replay.py"
SMALL_PATHS = [p for p in PATHS if not needs_disco103(p)]
LEARNER_FILES = [GOLDEN / f"{name}_learner.npz" for name in ("actor_critic", "disco_small")]


def save(path: Path, arrays: Arrays) -> Path:
    np.savez(path, allow_pickle=False, **arrays)  # pyright: ignore[reportArgumentType]
    return path


def perturbed(arrays: Arrays, name: str) -> Arrays:
    """``name`` off by one percent of its largest entry, in one place."""
    array = arrays[name].copy()
    array.flat[0] += 0.01 * max(np.abs(array).max(), 1e-3)
    return arrays | {name: array}


@pytest.mark.parametrize("path", each(PATHS + OTHER_SIZES))
def test_equals_the_reference(path: Path) -> None:
    report = replay(path)
    assert report.worst, "nothing was compared"
    assert not report.failures, {q: report.worst[q] for q in report.failures}


def load_float64(path: Path) -> Arrays:
    """Some files hold results only, for the inputs of the float32 file of the same name."""
    arrays = load(path)
    if inputs_of(arrays):
        return arrays
    (same,) = (p for p in PATHS + OTHER_SIZES if p.name == path.name)
    return load_results_for(path, inputs=same)


@pytest.mark.parametrize("path", each(IN_FLOAT64))
def test_equals_the_reference_in_float64(path: Path) -> None:
    """Where rounding hides nothing: learner steps and meta-gradients, in every memory mode."""
    report = replay_arrays(path.name, load_float64(path))
    assert len(report.worst) > (0 if path.stem == "policy_gradient" else 20)
    assert {allowed for _, allowed in report.worst.values()} == {1e-9}
    assert not report.failures, {q: report.worst[q] for q in report.failures}


@pytest.mark.parametrize("paths", [PATHS, OTHER_SIZES], ids=["first", "other_sizes"])
def test_there_are_files_of_every_kind(paths: list[Path]) -> None:
    assert {recognise(load(p)).name for p in paths if not needs_disco103(p)} == {
        "value estimation",
        "policy gradient",
        "actor-critic learner",
        "disco learner",
        "meta-gradient",
    }


@pytest.mark.parametrize(
    "name",
    ["retrace_0/q_target", "retrace_1/normalized_adv", "vtrace_scalar/adv", "tx/two_hot"],
)
def test_notices_wrong_values(name: str, tmp_path: Path) -> None:
    path = save(tmp_path / "wrong.npz", perturbed(load(GOLDEN / "value_estimation.npz"), name))
    assert replay(path).failures == [name]


@pytest.mark.parametrize("path", LEARNER_FILES, ids=lambda p: p.stem)
@pytest.mark.parametrize(
    "name", ["log_1/total_loss", "adv_ema_state_2/moment1", "log_2/global_gradient_norm"]
)
def test_notices_wrong_learner_steps(path: Path, name: str, tmp_path: Path) -> None:
    assert replay(save(tmp_path / "wrong.npz", perturbed(load(path), name))).failures


@pytest.mark.parametrize("path", LEARNER_FILES, ids=lambda p: p.stem)
def test_notices_wrong_parameters(path: Path, tmp_path: Path) -> None:
    arrays = load(path)
    for name in list(group(arrays, "params_3"))[::5]:
        wrong = save(tmp_path / "wrong.npz", perturbed(arrays, f"params_3/{name}"))
        assert replay(wrong).failures == ["params_final"], name


def test_notices_another_rule(tmp_path: Path) -> None:
    arrays = load(GOLDEN / "disco_small_learner.npz")
    for name in list(group(arrays, "meta_params"))[::4]:
        other = arrays | {f"meta_params/{name}": arrays[f"meta_params/{name}"] + 0.1}
        assert replay(save(tmp_path / "other.npz", other)).failures, name


def test_notices_nan(tmp_path: Path) -> None:
    arrays = load(GOLDEN / "policy_gradient.npz")
    arrays["out/loss_per_step"][0, 0] = np.nan
    assert replay(save(tmp_path / "nan.npz", arrays)).failures


# --- files of other sizes ------------------------------------------------------------------------


@pytest.mark.parametrize("path", LEARNER_FILES, ids=lambda p: p.stem)
@pytest.mark.parametrize("num_steps", [1, 2])
def test_replays_fewer_learner_steps(path: Path, num_steps: int, tmp_path: Path) -> None:
    kept = {}
    for name, array in load(path).items():
        kind, _, number = name.split("/")[0].rpartition("_")
        counts_results = kind in ("params", "adv_ema_state", "td_ema_state", "meta_rnn")
        last = num_steps if counts_results else num_steps - 1
        if not number.isdigit() or int(number) <= last:
            kept[name] = array
    report = replay(save(tmp_path / "short.npz", kept))
    assert not report.failures
    assert "params_final" in report.worst


def test_replays_fewer_trajectories_of_the_policy_gradient(tmp_path: Path) -> None:
    arrays = {k: v[:5, :2] for k, v in load(GOLDEN / "policy_gradient.npz").items()}
    arrays["in/adv"], arrays["in/normalized_adv"], arrays["out/loss_per_step"] = (
        arrays[k][:4] for k in ("in/adv", "in/normalized_adv", "out/loss_per_step")
    )
    assert not replay(save(tmp_path / "fewer.npz", arrays)).failures


def test_replays_fewer_trajectories_of_values(tmp_path: Path) -> None:
    """Trajectories only share the moments, so all that is not normalised holds for some of them."""
    arrays = {}
    for name, array in load(GOLDEN / "value_estimation.npz").items():
        if not name.split("/")[1].startswith("normalized"):
            arrays[name] = array if name.startswith("tx/") else array[:, :2]
    assert not replay(save(tmp_path / "fewer.npz", arrays)).failures


def test_replays_agents_with_more_actions_than_are_taken(tmp_path: Path) -> None:
    """An action with probability zero changes nothing but the number of actions."""
    arrays = load(GOLDEN / "policy_gradient.npz")
    arrays["in/logits"] = np.pad(
        arrays["in/logits"], [(0, 0), (0, 0), (0, 2)], constant_values=-1e4
    )
    assert not replay(save(tmp_path / "more.npz", arrays)).failures


# --- the script ----------------------------------------------------------------------------------


def test_script_passes_good_files() -> None:
    done = run_python(SCRIPT, *SMALL_PATHS)
    assert done.returncode == 0, done.stdout + done.stderr
    for path in SMALL_PATHS:
        assert f"{path.name}: " in done.stdout
    assert "FAIL" not in done.stdout


@pytest.mark.parametrize(
    "file, name",
    [
        ("value_estimation", "retrace_0/q_target"),
        ("policy_gradient", "out/loss_per_step"),
        ("actor_critic_learner", "params_3/mlp/~_head_pass/torso_head/~/linear_0/b"),
        ("disco_small_learner", "targets_0/y"),
    ],
)
def test_script_fails_on_a_wrong_file(file: str, name: str, tmp_path: Path) -> None:
    wrong = save(tmp_path / "wrong.npz", perturbed(load(GOLDEN / f"{file}.npz"), name))
    done = run_python(SCRIPT, wrong, GOLDEN / "policy_gradient.npz")
    assert done.returncode == 1
    assert "wrong.npz: " in done.stdout
    assert "past tolerance" in done.stdout
    assert "policy_gradient.npz: policy gradient: ok" in done.stdout


@pytest.mark.disco103
def test_script_fails_on_a_wrong_disco103_file(tmp_path: Path) -> None:
    arrays = load(GOLDEN / "disco103_learner.npz")
    done = run_python(SCRIPT, save(tmp_path / "wrong.npz", perturbed(arrays, "log_0/total_loss")))
    assert done.returncode == 1
    assert "total_loss" in next(x for x in done.stdout.splitlines() if "past tolerance" in x)


def test_script_fails_on_what_it_does_not_know(tmp_path: Path) -> None:
    unknown = save(tmp_path / "unknown.npz", {"x": np.zeros(3)})
    (tmp_path / "text.npz").write_text("not an archive")
    for path in (unknown, tmp_path / "text.npz", tmp_path / "missing.npz"):
        done = run_python(SCRIPT, path)
        assert done.returncode == 1, path
        assert f"{path.name}: FAIL" in done.stdout
        assert "Traceback" not in done.stderr
    assert run_python(SCRIPT).returncode != 0


@pytest.mark.parametrize(
    "file, parts, words",
    [
        ("disco_small_learner", "rollout_0/rewards", "has no array 'rollout_0/rewards'"),
        ("value_estimation", "in/target_q", "has no array 'in/target_q'"),
        ("meta_gradient_small", "meta_loss", "has no array 'meta_loss'"),
        ("meta_gradient_small", "meta_grads/", "has no result to compare"),
        ("actor_critic_learner", "params_3/", "has no result to compare"),
    ],
)
def test_a_file_that_lacks_something_fails_and_says_what(
    file: str, parts: str, words: str, tmp_path: Path
) -> None:
    kept = {k: v for k, v in load(GOLDEN / f"{file}.npz").items() if not k.startswith(parts)}
    with pytest.raises(DiscorlError, match=words):
        replay(save(tmp_path / "less.npz", kept))


def test_values_without_the_optional_parts(tmp_path: Path) -> None:
    arrays = load(GOLDEN / "value_estimation.npz")
    kept = {k: v for k, v in arrays.items() if "scalar" not in k and not k.startswith("tx/")}
    report = replay(save(tmp_path / "less.npz", kept))
    assert not report.failures
    assert "vtrace_categorical/adv" in report.worst


def test_damaged_files_do_not_stop_the_others(tmp_path: Path) -> None:
    good = GOLDEN / "policy_gradient.npz"
    arrays = load(good)
    (tmp_path / "cut.npz").write_bytes(good.read_bytes()[:-100])
    (tmp_path / "empty.npz").touch()
    save(tmp_path / "action.npz", arrays | {"in/actions": arrays["in/actions"] + 100})
    bad = [tmp_path / f"{name}.npz" for name in ("cut", "empty", "action")]
    done = run_python(SCRIPT, *bad, good)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert all(f"{path.name}: FAIL: " in done.stdout for path in bad)
    assert "policy_gradient.npz: policy gradient: ok" in done.stdout


def test_the_reference_rounds_values_by_more_than_the_tolerance() -> None:
    """Why more is allowed: the reference is that far from exact arithmetic itself."""
    arrays = load(GOLDEN / "disco_small_learner.npz")
    rule, _ = disco_rule(arrays)
    target = agent_params(group(arrays, "target_params_0"), "y")
    observations = torch.from_numpy(arrays["rollout_0/observations"])
    output = torch.func.functional_call(
        net_for(target, rule), double(target), (double(observations).flatten(0, 1),)
    )
    assert rule.value_head is not None
    q_value = rule.value_head.value(output.q).unflatten(0, observations.shape[:2])
    pi = torch.softmax(torch.from_numpy(arrays["agent_out_0/logits"]).double(), -1)
    exact = q_value - (pi * q_value).sum(-1, keepdim=True)

    reference = torch.from_numpy(arrays["targets_0/qv_adv"]).double()
    error = float((reference - exact).abs().max() / reference.abs().max())
    kind = recognise(arrays)
    assert error > 5 * published(kind, "targets_0/qv_adv")
    assert error < Limits(kind, arrays).of("targets_0/qv_adv")


@pytest.mark.parametrize("path", each(PATHS + OTHER_SIZES))
def test_limits_do_not_depend_on_the_code_under_test(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come from the file and from stored numbers; nothing is run to find them."""
    arrays = load(path)
    kind = recognise(arrays)
    results = next(iter(kind.ways.values()))(arrays)
    monkeypatch.setattr(torch.Tensor, "__add__", None)  # whatever is run now fails
    monkeypatch.setattr(torch.Tensor, "__mul__", None)
    limits = Limits(kind, arrays)
    limits.narrow()
    # Relative to an array of zeros, or nearly so, a limit may be anything.
    found = [limits.of(k) for k in results if k in arrays and np.abs(arrays[k]).max() > 1e-3]
    assert found
    assert all(1e-5 <= x < 0.25 for x in found)


def test_our_own_noise_can_only_narrow_a_limit() -> None:
    """Of a meta-gradient file that was not measured, which may be good to half a digit."""
    arrays = load(GOLDEN / "meta_gradient_small.npz")
    arrays["valid_rollout/rewards"] = arrays["valid_rollout/rewards"] + 1
    name, module = "meta_grads/lstm/linear_2/w", "lstm/linear_2"
    limits = Limits(recognise(arrays), arrays)
    widest = limits.of(name)
    assert widest < 1
    for noise, limit in ((1e-6, 1e-3), (1e-3, 12e-3), (0.5, widest), (1e9, widest)):
        limits.own_noise = {module: noise}
        assert limits.of(name) == pytest.approx(limit)


def test_a_file_that_was_not_measured_is_judged_by_how_noisy_it_is(tmp_path: Path) -> None:
    """Inputs that are off in the last digit make another file of the same results."""
    arrays = load(GOLDEN / "meta_gradient_small.npz")
    arrays["params_0/mlp/linear/b"] = arrays["params_0/mlp/linear/b"] * np.float32(1 + 1e-7)
    assert not replay(save(tmp_path / "other.npz", arrays)).failures
    name = "meta_grads/lstm/linear_2/w"
    wrong = replay(save(tmp_path / "wrong.npz", perturbed(arrays, name))).failures
    assert wrong == [f"{mode}/{name}" for mode in ("plain", "recompute", "mixed")]
