"""What is compared, from its name: a problem file, a workload, or a model with assumed or profiled costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


def problem_called(
    name: str,
    *,
    platform: str | None = None,
    workload: Mapping[str, str | int] | None = None,
    devices: str | None = None,
    partition_cpu: int | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    scenarios: Sequence[Scenario] = (),
    on_step: Callable[[str], None] = lambda _: None,
) -> ScheduleProblem:
    """The problem of a file, a workload or a model; a model without a platform is profiled on the devices here.

    ``workload`` are a workload's own options. Raises OptionError for what does not go with the source, ModelError where
    there is nothing of that name.
    """
    path = Path(name)
    if not is_workload(name) and not path.exists():
        names = ", ".join(spec.name for spec in list_workloads())
        raise ModelError(f"{name!r} is no file, and no workload; workloads are {names}")
    kind, taken = "a model", {"--devices", "--partition-cpu", "--shape", "--data-shape", "--platform"}
    if is_workload(name):
        kind, taken = "a workload", {"--platform", "--option"}
    elif path.suffix == ".json":
        kind, taken = "a problem file", set()
    elif platform is not None:
        kind, taken = "--platform, which brings its own devices", {"--platform", "--shape", "--data-shape"}
    given = {"--platform": platform, "--option": workload, "--devices": devices, "--partition-cpu": partition_cpu}
    for flag, value in {**given, "--shape": shapes, "--data-shape": scenarios}.items():
        if value and flag not in taken:
            raise OptionError(f"{flag} does not go with {kind}; leave it out")
    if is_workload(name):
        return build_problem(name, platform, workload or {})
    if path.suffix == ".json":
        return read_problem(path)

    from hsdag.benchmarking.profile import assumed_costs, run_profile
    from hsdag.runtime.machine.devices import resolve_devices
    from hsdag.runtime.measuring.caches import ProfileCache

    if platform is not None:
        return assumed_costs(path, load_platform(platform), shapes or {}, scenarios=tuple(scenarios))
    found, of_model = resolve_devices(devices, partition_cpu), {"shapes": shapes or {}, "scenarios": tuple(scenarios)}
    options: dict[str, Any] = {**of_model, "cache": ProfileCache.default(), "on_step": on_step}
    return run_profile(path, found, seed=0, **options).schedule
