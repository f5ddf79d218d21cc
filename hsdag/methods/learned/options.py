"""Training options that all learned methods share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, ClassVar, Self

from hsdag.base.errors import OptionError

Ranges = tuple[tuple[str, float, float, str], ...]
"""Ranges of options: a description, the least and the largest value, and names separated by spaces, for each."""
NO_END, ABOVE_0, BELOW_1 = math.inf, math.nextafter(0.0, 1.0), math.nextafter(1.0, 0.0)
"""Ends of ranges: no end, the least number above 0, and the largest number below 1."""


class Reward(Enum):
    """Reward of a plan with value v; v_ref is the value of the best single device."""

    INVERSE = "inverse"  # 1 / v (HSDAG §2.5)
    NEGATIVE = "negative"  # -v / v_ref (DOPPLER §4.1, Placeto); the division makes it independent of the unit of v
    SQUARE_ROOT = "square-root"  # -sqrt(v / v_ref) (Mirhoseini et al. 2017, GDP)
    LOG_RATIO = "log-ratio"  # log(v_ref / v), independent of the scale of v


class Baseline(Enum):
    """Baseline that is subtracted from rewards."""

    NONE = "none"  # 0 (HSDAG, eq. 14)
    RUNNING = "running"  # mean over all plans so far (DOPPLER §4.1)
    RECENT = "recent"  # mean over the last ten plans, for each step by itself if steps are rewarded (Placeto A.7)
    BATCH = "batch"  # mean over the plans of an update; advantages are scaled to unit scale
    RANKS = "ranks"  # the same with ranks in the update in place of rewards, so that outliers have little effect


@dataclass(frozen=True)
class TrainingOptions(ABC):
    """Hyper-parameters of every learned method; rates change linearly over the search, from first to last.

    Raises OptionError for a value out of range.
    """

    updates: int | None = None
    """Number of policy updates, over which rates change; 0: no training; None: as many as the budget allows, over which
    rates change then."""
    plans_per_update: int = 16
    """Number of plans that are drawn and evaluated per update."""
    kept_per_update: int | None = None
    """Number of these plans that the update learns from, half of them the best and half the worst; None: all. Drawing
    and evaluating a plan can cost less than learning from it."""
    epochs: int = 2
    """Number of optimisation steps per update."""
    learning_rate: float = 1e-3
    """Adam's learning rate at the beginning; if this and the last one are 0, the policy does not change."""
    last_learning_rate: float = 3e-4
    """Adam's learning rate at the end."""
    exploration: float = 0.0
    """Share of decisions that are drawn uniformly at the beginning; it falls to 0 at the end."""
    entropy: float = 1e-2
    """Weight of the mean entropy of decisions at the beginning, relative to advantages in unit scale."""
    last_entropy: float = 0.0
    """Weight of the mean entropy of decisions at the end."""
    reward: Reward = Reward.LOG_RATIO
    """Reward of a plan as a function of its value."""
    baseline: Baseline = Baseline.BATCH
    """Baseline subtracted from the rewards."""
    advantage_floor: float = 1e-3
    """Least standard deviation of rewards by which advantages are divided, so that measuring noise is not amplified."""
    discount: float = 1.0
    """Discount factor gamma: the advantage of the i-th plan of an episode is multiplied by gamma^i."""
    clip: float | None = 0.2
    """Clipping range of the importance weight of each decision (PPO); None: no importance weights."""
    elites: int = 1
    """Number of the best plans so far that every update imitates (self-imitation); 0: none."""
    imitation_weight: float = 1.0
    """Weight of imitated decisions in the loss, relative to those of drawn plans."""
    repairs: int = 4
    """Number of draws of an update that are also evaluated in repaired form, if they exceed a memory and plans are
    simulated."""
    teacher_updates: int = 0
    """Number of first updates that imitate the method's teacher instead of learning from rewards (DOPPLER, stage I)."""
    greedy_every: int = 0
    """Evaluate the most probable plan every this many updates; 0: never."""
    resample_tries: int = 1
    """Number of draws to find a plan that was not evaluated before; 1: repetitions are accepted."""
    single_devices_first: bool = True
    """Evaluate the plans of single devices before training begins; the best of them gives v_ref."""
    max_grad_norm: float = 1.0
    """Scale gradients down to this norm; 0: do not scale them."""
    stagnation: int = 0
    """Stop training after this many updates in a row without a better plan, and train another policy if there is time
    left; 0: never."""
    patience: int = 25
    """Stop after this many updates in a row without any new plan, since the policy has converged; 0: never."""

    ranges: ClassVar[Ranges] = (
        ("at least 0 or None", 0, NO_END, "updates"),
        ("at least 2 or None", 2, NO_END, "kept_per_update"),
        ("at least 1", 1, NO_END, "plans_per_update epochs resample_tries"),
        ("at least 0", 0, NO_END, "elites repairs greedy_every patience stagnation entropy last_entropy max_grad_norm"),
        ("at least 0", 0, NO_END, "imitation_weight teacher_updates learning_rate last_learning_rate"),
        ("above 0", ABOVE_0, NO_END, "advantage_floor"),
        ("above 0 or None", ABOVE_0, NO_END, "clip"),
        ("in [0, 1]", 0, 1, "exploration"),
        ("in (0, 1]", ABOVE_0, 1, "discount"),
    )
    """Ranges that the options have to be in; None is always allowed where the type allows it."""

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
        """Return the default preset: for simulated plans if ``is_cheap``, else for measured ones."""
        return cls(**SIMULATED) if is_cheap else cls()

    @classmethod
    @abstractmethod
    def paper(cls) -> Self:
        """Return the preset of the method's paper."""

    def as_dict(self) -> dict[str, int | float | bool | str | None]:
        """Return all fields as JSON values by name."""
        return {k: v.value if isinstance(v, Enum) else v for k, v in asdict(self).items()}


@dataclass(frozen=True)
class ReusableOptions(TrainingOptions):
    """Hyper-parameters of a method whose networks suit any problem, and so may be trained on others first."""

    initial: str | None = None
    """Policy file of 'hsdag train' whose weights the networks begin with, or 'shipped' for that of this release; None:
    they begin untrained."""

    @property
    def is_portable(self) -> bool:
        """Return whether the networks suit any problem."""
        return True

    @classmethod
    def reusable(cls) -> Self:
        """Return the options with which networks are trained for reuse."""
        return cls.default(is_cheap=True)


ALONE: Mapping[str, Any] = {"elites": 0, "repairs": 0, "patience": 0}
"""Options of papers: learn from the plans that the policy draws and from no others, until all updates are made."""
REINFORCE: Mapping[str, Any] = {**ALONE, "epochs": 1, "clip": None}
"""The same for REINFORCE: each plan is learned from once, without importance weights."""
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
"""Defaults if plans are simulated, which costs less than an epoch of training: more plans, each of them learned from
once, by rank; more exploration; and another policy when one stagnates."""
