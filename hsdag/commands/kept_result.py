"""What a search for a placement leaves in its run folder in the end, for reports and explanations."""

from __future__ import annotations

import platform
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import openvino as ov

from hsdag.commands.measured_trace import measured_timeline
from hsdag.ir.errors import SearchError
from hsdag.runtime.measuring.caches import identity, torch_identity
from hsdag.runtime.platforms.usable_cpus import usable_cpus
from hsdag.search.result_file import CostsRecord, ResultRecord, TimelineRecord, write_result
from hsdag.search.run_folder import RESULT
from hsdag.version import __version__

if TYPE_CHECKING:
    from hsdag.commands.outcome import PlaceResult
    from hsdag.runtime.measuring.candidate import Candidate
    from hsdag.search.final import FinalResult
    from hsdag.search.options import PlaceOptions
    from hsdag.search.searching import Found
    from hsdag.search.session import Session

TIMELINE_SHARE, TIMELINE_RUNS = 0.2, 5
"""A timeline of the answer is measured where compiling it takes at most this share of the budget; and its runs."""


def keep_result(
    found: Found,
    session: Session,
    outcome: PlaceResult,
    result: FinalResult,
    answer: Candidate,
    options: PlaceOptions,
) -> None:
    """Write how the search ended, with a measured run of the answer where there is time for one. Raises OutputError."""
    assert found.folder is not None
    subject = session.subject
    is_file = subject.name is not None and not subject.is_workload
    record = ResultRecord(
        answer=outcome.document(),
        placement=outcome.placement,
        model_path=str(subject.path.resolve()) if is_file else None,
        samples_s={name: [list(r) for r in samples.rounds] for name, samples in result.comparison.samples.items()},
        costs=CostsRecord.of(found.costs),
        timeline=None if outcome.interrupted else _timeline(session, result, answer, options),
        environment=_environment(session),
        budget_s=options.budget_s,
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    write_result(record, found.folder.path / RESULT)


def _timeline(session: Session, result: FinalResult, answer: Candidate, options: PlaceOptions) -> TimelineRecord | None:
    if result.opened[result.answer].compile_s > TIMELINE_SHARE * options.budget_s:
        return None
    with suppress(SearchError):
        return TimelineRecord.of(measured_timeline(session, answer, TIMELINE_RUNS))
    return None


def _environment(session: Session) -> dict[str, str]:
    """Versions, and the hardware of every device by its full name."""
    identify = torch_identity if session.is_on_torch else identity
    hardware = {f"device {spec.name}": str(identify(spec).get("hardware", "")) for spec in session.devices.all}
    return {
        "hsdag": __version__,
        "openvino": ov.get_version(),
        "python": platform.python_version(),
        "system": platform.platform(),
        "processors": str(usable_cpus()),
        **hardware,
    }
