"""Placing every model of a folder, one after another, each with its own placement file and run folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from hsdag.commands.outcome import PlaceResult
from hsdag.ir.errors import FileFormatError, HsdagError, ModelError, OutputError
from hsdag.ir.placement import Placement
from hsdag.ir.reader import MODEL_SUFFIXES, SAVED_MODEL
from hsdag.search.result_file import read_result
from hsdag.search.run_folder import EVENTS, RESULT, RUN, read_run_record

PlaceOne = Callable[[Path, Path, bool], PlaceResult]
"""``place_one(model, run_folder, resume)`` places a model, or raises a HsdagError."""


class Outcome(Enum):
    """What became of a model of a folder."""

    PLACED = "placed"
    SKIPPED = "skipped"  # it has a placement already
    INTERRUPTED = "interrupted"  # its placement is the best that was found by then
    FAILED = "failed"
    NOT_REACHED = "not reached"


@dataclass(frozen=True)
class FolderEntry:
    """One model of a folder: the files of its search, and why it has no placement where it has none."""

    model: Path
    placement_path: Path
    run_folder: Path
    outcome: Outcome
    placement: Placement | None = None
    reason: str | None = None

    def document(self) -> dict[str, object]:
        """One entry of the JSON answer."""
        found = self.placement
        return {
            "model": str(self.model),
            "outcome": self.outcome.value,
            "placement": str(self.placement_path) if found is not None else None,
            "run_folder": str(self.run_folder) if self.run_folder.is_dir() else None,
            "median_s": found.latency.median_s if found is not None and found.latency is not None else None,
            "speedup": found.speedup.model_dump(mode="json") if found is not None and found.speedup else None,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class FolderResult:
    """Every model of a folder, in alphabetical order."""

    folder: Path
    models: tuple[FolderEntry, ...]

    def count(self, outcome: Outcome) -> int:
        """Models with this outcome."""
        return Counter(each.outcome for each in self.models)[outcome]

    def document(self) -> dict[str, object]:
        """The JSON answer of ``hsdag place FOLDER``."""
        counts = {outcome.value.replace(" ", "_"): self.count(outcome) for outcome in Outcome}
        return {"folder": str(self.folder), "counts": counts, "models": [each.document() for each in self.models]}


def holds_models(path: Path) -> bool:
    """Whether a path is a folder that is no model itself."""
    return path.is_dir() and not (path / SAVED_MODEL).is_file()


def models_in(folder: Path) -> list[Path]:
    """The model files of a folder, and its folders that are models. Raises ModelError where there is none."""
    found = sorted(
        each
        for each in folder.iterdir()
        if (each.is_file() and each.suffix in MODEL_SUFFIXES) or (each / SAVED_MODEL).is_file()
    )
    if not found:
        raise ModelError(f"{folder} is a folder without a model; models end in {', '.join(MODEL_SUFFIXES)}")
    return found


def place_folder(
    folder: Path,
    place_one: PlaceOne,
    *,
    output: Path | None = None,
    resume: bool = False,
    settings: Mapping[str, object] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    on_model: Callable[[str], None] = lambda _: None,
) -> FolderResult:
    """Place the models of a folder one after another; one that fails does not end it, ``should_stop`` does.

    Placements and run folders go to ``output``, or beside the models. With ``resume``, models with a finished
    placement are skipped, unless their search had other ``settings``, fields of its RunRecord; searches with a run
    folder go on. Raises ModelError for a folder without a model,
    OutputError where ``output`` cannot be a folder.
    """
    models = models_in(folder)
    if output is not None and not output.is_dir():
        try:
            output.mkdir()
        except OSError as error:
            raise OutputError(f"{output} cannot be made a folder for the placements: {error.strerror}") from error
    stems = Counter(model.stem for model in models)
    done: list[FolderEntry] = []
    for idx, model in enumerate(models, start=1):
        name = model.stem if stems[model.stem] == 1 else model.name
        written = (output or model.parent) / f"{name}.placement.json"
        job = FolderEntry(model, written, written.with_suffix(".run"), Outcome.NOT_REACHED)
        if not should_stop():
            on_model(f"{model.name}, {idx} of {len(models)}")
            is_finished = resume and _is_finished(job, settings or {})
            job = _skipped(job) if is_finished else _placed(job, place_one, resume, should_stop)
        done.append(job)
    return FolderResult(folder, tuple(done))


def _skipped(job: FolderEntry) -> FolderEntry:
    try:
        return replace(job, outcome=Outcome.SKIPPED, placement=Placement.load(job.placement_path))
    except FileFormatError as error:
        return replace(job, outcome=Outcome.FAILED, reason=str(error))


def _placed(job: FolderEntry, place_one: PlaceOne, resume: bool, should_stop: Callable[[], bool]) -> FolderEntry:
    try:
        result = place_one(job.model, job.run_folder, resume and (job.run_folder / EVENTS).is_file())
        result.placement.save(job.placement_path)
    except HsdagError as error:
        return replace(job, outcome=Outcome.FAILED, reason=str(error))
    except Exception as error:  # noqa: BLE001 - a defect that one model shows must not cost the others
        return replace(job, outcome=Outcome.FAILED, reason=f"a defect of hsdag: {type(error).__name__}: {error}")
    ended = Outcome.INTERRUPTED if result.interrupted or should_stop() else Outcome.PLACED
    return replace(job, outcome=ended, placement=result.placement, reason=result.sentence)


def _is_finished(job: FolderEntry, settings: Mapping[str, object]) -> bool:
    """Whether there is a placement, and its search was not interrupted and had these settings."""
    if not job.placement_path.is_file():
        return False
    if not (job.run_folder / RUN).is_file():  # on one device there is no search
        return True
    try:
        record = read_run_record(job.run_folder)
        ended = not read_result(job.run_folder / RESULT).answer.get("interrupted", True)
    except FileFormatError:  # the result is missing where the search did not end, as the latest of several may have not
        return False
    return ended and all(getattr(record, name) == value for name, value in settings.items())
