"""Write a run folder as one HTML page (``hsdag report``)."""

from __future__ import annotations

from pathlib import Path

from hsdag.base.errors import checked
from hsdag.base.files import check_writable, write_atomically
from hsdag.commands.place.result import PlaceResult
from hsdag.commands.place.run_folder import RunFolder
from hsdag.commands.report.page import report_html
from hsdag.commands.report.words import sentence_of
from hsdag.ir.placement.placement import Record


class ReportResult(Record):
    """The files of a report, and its first sentence."""

    files: tuple[Path, ...]
    sentence: str


@checked
def report(run: str | Path | PlaceResult, output: str | Path | None = None) -> ReportResult:
    """Write a search as one HTML file, by default next to the run folder under its name, as ``hsdag report`` does.

    The page needs the extra ``report``. Raises SearchError and FileFormatError if there is no such run, OptionError if
    the extra is missing, and OutputError if the file cannot be written.

    Args:
        run: A result of ``place``, a run folder (also of an unfinished search), or the placement file next to it.

    Examples:
        >>> import hsdag, tempfile, openvino as ov
        >>> from pathlib import Path
        >>> x = ov.opset13.parameter([2], name="x")
        >>> model = ov.Model([ov.opset13.negative(ov.opset13.relu(x))], [x], "small")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     search = hsdag.place(model, "A=CPU,B=CPU", budget="1s", run_folder=Path(folder) / "search")
        ...     print([path.name for path in hsdag.report(search).files])
        ['search.html']
    """
    if output is not None:
        check_writable(Path(output))
    kept = RunFolder.load(run)
    path = kept.path.with_suffix(".html") if output is None else Path(output)
    write_atomically(path, report_html(kept).encode())
    return ReportResult(files=(path,), sentence=sentence_of(kept))
