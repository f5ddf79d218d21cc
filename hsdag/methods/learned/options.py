"""Options of training that all learned methods share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, ClassVar, Self

from hsdag.base.errors import OptionError

Ranges = tuple[tuple[str, float, float, str], ...]
NO_END, ABOVE_0, BELOW_1 = math.inf, math.nextafter(0.0, 1.0), math.nextafter(1.0, 0.0)


class Reward(Enum):
    """What a value v is worth; v_ref is that of the best single device."""

    INVERSE = "inverse"  # 1 / v (HSDAG §2.5)
    NEGATIVE = "negative"  # -v / v_ref (DOPPLER §4.1, Placeto), in a unit that does not depend on the problem's
    SQUARE_ROOT = "square-root"  # -sqrt(v / v_ref) (Mirhoseini et al. 2017, GDP)
    LOG_RATIO = "log-ratio"  # log(v_ref / v), without a scale


class Baseline(Enum):
    """What is subtracted from a reward."""

    NONE = "none"  # HSDAG, eq. 14
    RUNNING = "running"  # mean over all plans so far (DOPPLER §4.1)
    RECENT = "recent"  # mean over the last ten plans, of every step where steps are rewarded (Placeto A.7)
    BATCH = "batch"  # mean of the plans of one update; advantages get unit scale
    RANKS = "ranks"  # the same of the rewards' ranks in one update, which no outlier moves


@dataclass(frozen=True)
class TrainingOptions(ABC):
    """What every learned method takes. Rates that change do so linearly over the search, from first to last.

    Raises OptionError for a value out of range.
    """

    updates: int | None = None
    """Number of policy updates, over which rates change, 0 to train nothing; None: until the budget is spent, over
    which they change."""
    plans_per_update: int = 16
    """Plans drawn and evaluated from one state of the weights, at least."""
    growth: float = 0.0
    """Share of the plans so far that an update draws where this is more: larger batches find the finer gains."""
    kept_per_update: int | None = None
    """Of these, those that are learned from, one half the best and one half the worst; None: all. A plan costs less to
    draw and to evaluate than to learn from."""
    epochs: int = 2
    """Optimisation steps per update."""
    learning_rate: float = 1e-3
    """Adam's learning rate at the beginning; where this and the last are 0, nothing is learned from any plan."""
    last_learning_rate: float = 3e-4
    """Adam's learning rate at the end."""
    exploration: float = 0.0
    """Share of uniform decisions at the beginning; there are none at the end."""
    entropy: float = 1e-2
    """Weight of the entropy of a decision at the beginning, relative to unit advantages."""
    last_entropy: float = 0.0
    """Weight of the entropy of a decision at the end."""
    reward: Reward = Reward.LOG_RATIO
    """Reward of a plan."""
    baseline: Baseline = Baseline.BATCH
    """Baseline subtracted from the rewards."""
    advantage_floor: float = 1e-3
    """Smallest spread of rewards that is scaled up to one; keeps measuring noise from being amplified."""
    discount: float = 1.0
    """gamma: the i-th plan of an episode counts gamma^i."""
    clip: float | None = 0.2
    """Clipping range of the importance weight of every decision (PPO); None turns importance weighting off."""
    elites: int = 1
    """Best plans so far that every update imitates (self-imitation); 0 turns it off."""
    imitation_weight: float = 1.0
    """Weight of imitated decisions beside the others."""
    teacher_updates: int = 0
    """Updates that imitate the method's teacher before learning from rewards begins (DOPPLER, stage I)."""
    greedy_every: int = 0
    """Updates from one evaluation of the most probable plan to the next; 0 for never."""
    resample_tries: int = 1
    """Draws spent on finding a plan that was not evaluated before; 1 accepts repetitions."""
    single_devices_first: bool = True
    """Evaluate the plans of single devices before learning starts, which gives v_ref."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm; 0 leaves them alone."""
    stagnation: int = 0
    """Updates in a row without a better plan after which the search ends, and begins anew where there is time; 0
    never."""
    patience: int = 25
    """Updates in a row without any new plan after which the search has converged; 0 never."""

    ranges: ClassVar[Ranges] = (
        ("at least 0 or None", 0, NO_END, "updates"),
        ("at least 2 or None", 2, NO_END, "kept_per_update"),
        ("at least 1", 1, NO_END, "plans_per_update epochs resample_tries"),
        ("at least 0", 0, NO_END, "elites greedy_every patience stagnation entropy last_entropy max_grad_norm"),
        ("at least 0", 0, NO_END, "imitation_weight teacher_updates learning_rate last_learning_rate growth"),
        ("above 0", ABOVE_0, NO_END, "advantage_floor"),
        ("above 0 or None", ABOVE_0, NO_END, "clip"),
        ("in [0, 1]", 0, 1, "exploration"),
        ("in (0, 1]", ABOVE_0, 1, "discount"),
    )
    """What options must be, in words and as the least and the largest value, and their names."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise OptionError(f"option {name} must be finite, not {value}")
        for wanted, least, most, names in self.ranges:
            for name in names.split():
                value = getattr(self, name)
                if value is not None and not least <= value <= most:
                    raise OptionError(f"option {name} must be {wanted}, not {value}")

    @classmethod
    def default(cls, *, is_cheap: bool) -> Self:
        """The default preset; ``is_cheap`` says that plans will be simulated."""
        return cls(**SIMULATED) if is_cheap else cls()

    @classmethod
    @abstractmethod
    def paper(cls) -> Self:
        """The preset of the method's paper."""

    def as_dict(self) -> dict[str, int | float | bool | str | None]:
        """All fields as JSON values."""
        return {k: v.value if isinstance(v, Enum) else v for k, v in asdict(self).items()}


ALONE: Mapping[str, Any] = {"elites": 0, "patience": 0}
"""Options of papers: nothing but what the policy draws is learned from, until the updates are over."""
REINFORCE: Mapping[str, Any] = {**ALONE, "epochs": 1, "clip": None}
"""The same where every plan is learned from once, as it was drawn."""
SIMULATED: Mapping[str, Any] = {
    "plans_per_update": 32,
    "epochs": 1,
    "learning_rate": 3e-3,
    "last_learning_rate": 3e-3,
    "entropy": 0.05,
    "baseline": Baseline.RANKS,
    "elites": 1,
    "imitation_weight": 0.03,
    "greedy_every": 0,
    "resample_tries": 1,
    "stagnation": 60,
}
"""Defaults where plans are simulated, which costs less than an epoch: more of them, each learned from once, by rank;
more exploration, and another policy where one stagnates."""
