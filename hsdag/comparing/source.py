"""What is compared, from its name: a problem file, a workload, or a model with assumed or profiled costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hsdag.ir.errors import ModelError, OptionError
from hsdag.models import is_workload, list_workloads
from hsdag.runtime.platforms import load_platform
from hsdag.runtime.problem.problem_file import read_problem
from hsdag.runtime.problem.schedule_problem import ScheduleProblem
from hsdag.sources.workload import build_problem

if TYPE_CHECKING:
    from hsdag.ir.graph.scenario import Scenario


@dataclass(frozen=True)
class Source:
    """A problem file, a workload or a model by name, and what belongs to one of them.

    ``platform`` is for workloads and models, ``workload`` holds a workload's own options; the others are for models.
    """

    name: str
    platform: str | None = None
    workload: Mapping[str, str | int] = field(default_factory=dict)
    devices: str | None = None
    partition_cpu: int | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    seed: int = 0
    scenarios: tuple[Scenario, ...] = ()

    def problem(self, on_step: Callable[[str], None] = lambda _: None) -> ScheduleProblem:
        """The problem; a model without a platform is profiled on the devices that are here.

        Raises OptionError for what does not go with the source, ModelError where there is nothing of that name.
        """
        if is_workload(self.name):
            self._refuse("a workload", {"--devices": self.devices, **self._of_models})
            return build_problem(self.name, self.platform, self.workload)
        path = Path(self.name)
        if not path.exists():
            names = ", ".join(spec.name for spec in list_workloads())
            raise ModelError(f"{self.name!r} is no file, and no workload; workloads are {names}")
        if path.suffix == ".json":
            unknown = {"--platform": self.platform, "--devices": self.devices, "--option": self.workload}
            self._refuse("a problem file", {**unknown, **self._of_models})
            return read_problem(path)
        self._refuse("a model", {"--option": self.workload})
        return self._of_model(path, on_step)

    @property
    def _of_models(self) -> dict[str, object]:
        return {"--partition-cpu": self.partition_cpu, "--shape": self.shapes, "--data-shape": self.scenarios}

    def _refuse(self, what: str, options: Mapping[str, object]) -> None:
        for flag, value in options.items():
            if value:
                raise OptionError(f"{flag} does not go with {what}; leave it out")

    def _of_model(self, path: Path, on_step: Callable[[str], None]) -> ScheduleProblem:
        from hsdag.benchmarking.profile import assumed_costs, run_profile
        from hsdag.runtime.machine.devices import resolve_devices
        from hsdag.runtime.measuring.caches import ProfileCache

        if self.platform is not None:
            own = {"--devices": self.devices, "--partition-cpu": self.partition_cpu}
            self._refuse("--platform, which brings its own devices", own)
            return assumed_costs(path, load_platform(self.platform), self.shapes, scenarios=self.scenarios)
        found, cache = resolve_devices(self.devices, self.partition_cpu), ProfileCache.default()
        given: dict[str, Any] = {"shapes": self.shapes, "scenarios": self.scenarios, "seed": self.seed}
        return run_profile(path, found, **given, cache=cache, on_step=on_step).schedule
