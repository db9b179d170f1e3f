"""How far a result may be from the reference's: what its own rounding was measured to be.

The reference computes in float32. By how much that changes its results was measured on a sample
of files for which it also gave results in float64 (``measure_noise.py``). ``noise.json`` keeps the
largest distance of each quantity, in a unit that fits files of any size (``Units``). A limit is
``MARGIN`` times as much, and never below the tolerance that was published with the first files
(``published``). It depends on the file and on these numbers. Nothing of it is computed by the code
under test, so no mistake in that code can widen its own limit.

Meta-gradients are harder. In some files the reference is half of itself away from its own float64
result, in most a thousandth. For the files kept here the distance of each array is stored. For any
other file the largest distance ever measured is the limit, and the noise of our own runs may narrow
it but never widen it. In float64 none of this matters.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np

from .files import Arrays, digest, group, is_float64
from .kinds import Kind

NOISE = Path(__file__).with_name("noise.json")
MARGIN = 3
"""Ours rounds, too, and other files will be noisier than all that were measured."""
OWN_MARGIN, OWN_FLOOR = 12, 1e-3
"""Of meta-gradients beside the noise of our own runs. In the sample ours were at most 6 times as
far from the reference's, where they were farther than a thousandth at all."""
FILE_MARGIN = 2
"""Of meta-gradients of measured files: their noise is the largest in several runs."""
FLOAT64 = 1e-9
"""Of results in float64, relative to the largest entry of an array."""

# --- names ---------------------------------------------------------------------------------------

QUANTITIES = (  # of what an array is one instance: pattern of its name -> name
    (r"(log)_\d+/(total_loss)", r"\2"),
    (r"(agent_out|targets|log)_\d+/(.*)", r"\1/\2"),
    (r"meta_log/(.*)", r"log/\1"),
    (r"(adv|td)_ema_state_\d+/moment1", r"\1_ema_state/mean"),
    (r"(adv|td)_ema_state_\d+/moment2", r"\1_ema_state/mean_square"),
    (r"(adv|td)_ema_state_\d+/(.*)", r"\1_ema_state/\2"),
    (r"meta_rnn_\d+/lstm/meta_rnn_state/(.*)", r"lifetime_rnn/\1"),
    (r"out/(.*)", r"\1"),
    (r"((value_)?params_final)/.*", r"\1"),
    (r"params_\d+/.*", "params"),
)


def quantity_of(name: str) -> str:
    """What an array of a file is one instance of: ``targets_2/adv`` -> ``targets/adv``."""
    for pattern, quantity in QUANTITIES:
        if m := re.fullmatch(pattern, name):
            return m.expand(quantity)
    return name


def noise_key(name: str) -> str:
    """The quantity, less what files of other sizes do not have: numbers of calls and of layers."""
    quantity = quantity_of(name)
    quantity = re.sub(r"^retrace_\d+", "retrace", quantity)
    quantity = re.sub(r"^params_final", "params", quantity)
    return re.sub(r"^meta_grads.*", "meta_grads", quantity)


# --- units ---------------------------------------------------------------------------------------

VALUES = {"q_value", "target_q_value", "value", "values", "target_value"}
MADE_OF_VALUES = {
    *("q_target", "value_target", "avg_value", "agent_q_mean", "loss_from_td"),
    *("adv", "raw_advs", "pg_advs", "qv_adv", "q_td", "td", "tds"),
}
EPSILON = 2.0**-21  # four units in the last place of float32: targets are sums over steps


def largest(*arrays: np.ndarray) -> float:
    return max((float(np.abs(x).max()) for x in arrays if x.size), default=0.0)


def value_step(largest_value: float) -> float:
    """The spacing of the reference's values, whose inverse transform subtracts 500 from a float32
    near 500: differences of values, and means of them, are no more exact, however small."""
    spacing = 2.0**-15  # of float32 between 256 and 512
    return 2 * (1 + largest_value) ** 0.5 * spacing


class Units:
    """In what the rounding of each array of a file is measured: an absolute number."""

    def __init__(self, kind: Kind, arrays: Arrays) -> None:
        self.kind, self.arrays = kind, arrays

    def of(self, name: str) -> float:
        """For most arrays the largest entry; more where that is small beside what it is made of."""
        place, _, what = name.partition("/")
        scale = largest(self.arrays[name])
        if place == "tx":
            return scale
        if what == "moment1":
            return self.step(place) * self.weight(place) + EPSILON * scale
        if what == "moment2":
            return 2 * self.spread(place) * self.step(place) * self.weight(place) + EPSILON * scale
        if what.startswith("normalized") and place != "meta_log":  # which has means
            return self.step(place) * (1 + scale) / self.deviation(place, what) + EPSILON * scale
        if what in VALUES | MADE_OF_VALUES:
            return self.step(place) + EPSILON * scale
        if self.kind.name == "actor-critic learner" and what == "total_loss":
            return self.step(place) + EPSILON * scale  # advantages enter it as they are
        if what.startswith("global_"):  # norms
            return scale
        if re.fullmatch(r"meta_loss|(meta_)?log(_\d+)?|targets_\d+|meta_rnn_\d+", place):
            return 1 + scale  # means may be near 0 though their terms are not
        return scale

    def values_near(self, place: str) -> Arrays:
        """The values that the file has at the step of ``place``."""
        if m := re.fullmatch(r"log_(\d+)", place):
            return group(self.arrays, f"targets_{m.group(1)}")
        if m := re.fullmatch(r"(?:adv|td)_ema_state_(\d+)", place):  # after the step
            return group(self.arrays, f"targets_{int(m.group(1)) - 1}")
        return group(self.arrays, place)

    def step(self, place: str) -> float:
        """The spacing of values as large as those that the network predicts."""
        near = self.values_near(place)
        if near.keys() & VALUES:
            return value_step(largest(*(near[name] for name in near.keys() & VALUES)))
        if near.keys() >= {"q_target", "adv", "qv_adv"}:
            return value_step(largest(near["q_target"] - near["adv"]) + largest(near["qv_adv"]))
        return value_step(largest(*(x for name, x in near.items() if name in MADE_OF_VALUES)))

    def weight(self, place: str) -> float:
        """How much of the moments' mean was seen: they start at zero."""
        return 1 - float(self.arrays[f"{place}/decay_product"])

    def spread(self, place: str) -> float:
        return (float(self.arrays[f"{place}/moment2"]) / self.weight(place)) ** 0.5

    def deviation(self, place: str, what: str) -> float:
        """What the array was divided by."""
        of_td = "td" in what
        if m := re.fullmatch(r"(?:log|targets)_(\d+)", place):
            after = f"{'td' if of_td else 'adv'}_ema_state_{int(m.group(1)) + 1}"
            if f"{after}/moment1" in self.arrays:
                mean = float(self.arrays[f"{after}/moment1"]) / self.weight(after)
                return max(self.spread(after) ** 2 - mean**2, 0.0) ** 0.5 + 1e-6
        normalized = self.arrays[f"{place}/{what}"]
        raw = self.arrays.get(f"{place}/{what.removeprefix('normalized_')}")
        if raw is None or not raw.size:
            return 1.0
        if np.ptp(normalized) > 0:  # the mean may have been subtracted
            return float(np.ptp(raw) / np.ptp(normalized)) + 1e-6
        return largest(raw) / max(largest(normalized), 1e-6) + 1e-6


# --- limits --------------------------------------------------------------------------------------


def published(kind: Kind, name: str) -> float:
    """What the first files say of themselves, relative to the largest entry of an array."""
    place, _, what = name.partition("/")
    if re.match(r"(value_)?params|meta_grads", place):
        return 1e-4
    if what == "total_loss":
        return 1e-5 if kind.is_disco103 else 2e-5
    return 5e-4 if kind.is_disco103 else 2e-5


class Limits:
    """The largest distance allowed of each array of a file, relative to its largest entry."""

    def __init__(self, kind: Kind, arrays: Arrays) -> None:
        self.kind, self.arrays, self.units = kind, arrays, Units(kind, arrays)
        stored = json.loads(NOISE.read_text())
        self.noise: dict[str, float] = stored["families"][kind.family]
        self.noise_of_file: dict[str, float] = stored["files"].get(digest(arrays), {})
        self.own_noise: dict[str, float] = {}

    def narrow(self) -> None:
        """Find out how noisy a file is that was not measured."""
        is_measured = is_float64(self.arrays) or self.noise_of_file
        if self.kind.own_noise and not is_measured:
            self.own_noise = self.kind.own_noise(self.arrays)

    def of(self, name: str) -> float:
        if is_float64(self.arrays):
            return FLOAT64
        if name.startswith("meta_grads"):
            return max(published(self.kind, name), self.of_meta_gradient(name))
        scale = max(largest(self.arrays[name]), 1e-12)
        noise = self.noise.get(noise_key(name), 0.0) * self.units.of(name)
        return max(published(self.kind, name), MARGIN * noise / scale)

    def of_meta_gradient(self, name: str) -> float:
        if self.noise_of_file:
            return FILE_MARGIN * at_least_typical(name, self.noise_of_file)
        widest = self.noise["meta_grads"]
        if not self.own_noise:
            return widest
        module = name.partition("/")[2].rpartition("/")[0]
        return min(widest, max(OWN_FLOOR, OWN_MARGIN * at_least_typical(module, self.own_noise)))


def at_least_typical(name: str, noise: dict[str, float]) -> float:
    """One array may be more exact than the others by luck."""
    return max(noise[name], float(np.median([x for x in noise.values() if x > 0])))
