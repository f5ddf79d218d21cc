"""Reading files with limits and checks, and writing them either completely or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from hsdag.base.errors import FileFormatError, OutputError, SearchError
from hsdag.base.host import lock_file

MODEL_SUFFIXES = (".xml", ".onnx", ".pb", ".tflite", ".pdmodel", ".gguf")
"""Endings of the names of model files."""

LARGEST_TEXT_BYTES = 500_000_000
"""Most bytes that are read of a JSON or TOML file; the problem of a graph of 100,000 ops takes about 30 million."""

CACHE_VARIABLE = "HSDAG_CACHE_DIR"

R = TypeVar("R", bound=BaseModel)


def cache_folder() -> Path:
    """Return the folder named by HSDAG_CACHE_DIR, or else hsdag's folder in the user's cache folder."""
    import platformdirs

    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("hsdag"))


def parse_document(text: str, origin: str, format_name: str, versions: Collection[int]) -> Mapping[str, Any]:
    """Parse a JSON object that must have the format ``format_name`` (``hsdag-KIND``) and one of the versions.

    Raises FileFormatError that names ``origin`` when it does not.
    """
    kind = format_name.removeprefix("hsdag-")
    try:
        document = parse_json(text, origin)
    except FileFormatError as error:
        raise FileFormatError(f"{error}; a {kind} file is expected") from error
    if not isinstance(document, Mapping) or document.get("format") != format_name:
        raise FileFormatError(f"{origin}: 'format' is not {format_name!r}; this is not a {kind} file")
    if document.get("version") not in versions:
        readable = " and ".join(map(str, versions))
        raise FileFormatError(f"{origin}: 'version' is {document.get('version')!r}, but this hsdag reads {readable}")
    return document


def parse_record(record: type[R], text: str, origin: str, versions: Collection[int] = (1,)) -> R:
    """Parse a record; its field ``format`` names the format. Raises FileFormatError like ``parse_document``."""
    document = parse_document(text, origin, record.model_fields["format"].default, versions)
    try:  # fields computed from other fields are not read
        return record.model_validate({k: v for k, v in document.items() if k not in record.model_computed_fields})
    except ValidationError as error:
        raise FileFormatError(f"{origin}: {first_problem(error)}") from error


def parse_json(text: str, origin: str) -> Any:
    """Parse a JSON text. Raises FileFormatError that names ``origin``, also where it nests 200 deep."""
    try:
        return from_json(text)
    except ValueError as error:
        raise FileFormatError(f"{origin}: not JSON ({error})") from error


def first_problem(error: ValidationError) -> str:
    """Return the first complaint of a schema error as ``path.inside[3].document: message``."""
    detail = error.errors()[0]
    path = ""
    for part in (part for part in detail["loc"] if part != "[key]"):  # pydantic puts [key] behind a wrong key
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    message = detail["msg"].removeprefix("Value error, ")
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{path or 'document'}: {message}{more}"


def read_text(path: Path) -> str:
    """Read the text of a file or pipe. Raises FileFormatError when it is missing, too large or not text."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_TEXT_BYTES + 1)
        text = content.decode()
    except FileNotFoundError as error:
        raise FileFormatError(f"no such file: {path}") from error
    except (OSError, ValueError) as error:
        reason = "it is not text, as hsdag's own files are" if isinstance(error, UnicodeDecodeError) else error
        raise FileFormatError(f"{path} cannot be read: {reason}") from error
    if len(content) > LARGEST_TEXT_BYTES:
        raise FileFormatError(f"{path} is larger than {LARGEST_TEXT_BYTES} bytes, the most that hsdag reads of a text")
    return text


def check_writable(path: Path, *, is_folder: bool = False) -> None:
    """Raise OutputError unless a file can be made at ``path``, or a folder, which may exist already."""
    if not path.name or (path.is_dir() and not is_folder):
        raise OutputError(f"{path} is a folder; name the file to write")
    if not path.parent.is_dir():
        raise OutputError(f"{path} cannot be written: there is no folder {path.parent}")
    try:
        with tempfile.TemporaryFile(dir=path.parent):  # access rights alone do not tell
            pass
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {path.parent} takes no files ({error.strerror})") from error


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file completely or not at all: temporary file, fsync, rename.

    Raises OutputError when the folder is missing or not writable.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}") from error


@contextmanager
def new_folder(out_path: Path) -> Iterator[Path]:
    """Yield a folder to fill, which becomes ``out_path`` at the end, or is removed if anything fails.

    Raises OutputError if ``out_path`` exists and is not an empty folder, and where files cannot be written.
    """
    if out_path.is_file() or (out_path.is_dir() and any(out_path.iterdir())):
        raise OutputError(f"{out_path} is there already, and is no empty folder: name a new one")
    with _filled(out_path) as folder:
        yield folder
        _sync(folder)
        folder.chmod(0o755)  # temporary folders are readable by their owner alone
        if out_path.is_dir():  # an empty folder, which some systems do not replace
            out_path.rmdir()
        folder.replace(out_path)


@contextmanager
def new_files(out_path: Path) -> Iterator[Path]:
    """Yield a folder to fill, whose files are then moved beside ``out_path``, the file ``out_path`` itself last.

    Raises OutputError when the files cannot be written; earlier files then stay as they were.
    """
    with _filled(out_path) as folder:
        yield folder
        _sync(folder)
        for path in sorted(folder.iterdir(), key=lambda path: path.name == out_path.name):
            path.replace(out_path.with_name(path.name))


@contextmanager
def _filled(out_path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside ``out_path``, removed at the end. A failure to write is an OutputError."""
    try:
        folder = Path(tempfile.mkdtemp(dir=out_path.parent, prefix=f".{out_path.name}."))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except (OSError, RuntimeError) as error:  # OpenVINO reports an unwritable file as RuntimeError
        system = error.strerror if isinstance(error, OSError) else None
        reason = system or str(error).strip().splitlines()[-1]
        raise OutputError(f"{out_path} cannot be written: {reason}; check the folder's rights and space") from error


def _sync(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("r+b") as file:  # some systems flush only a file that is open for writing
                os.fsync(file.fileno())


class FileLock(AbstractContextManager["FileLock"]):
    """A lock on a file, which is made if it is missing; released with this object at the latest.

    On a file system without locks it keeps nobody out.
    """

    def __init__(self, path: Path, taken: str) -> None:
        """Take the lock. Raises SearchError(taken) if another process has it, OutputError if there can be no file."""
        self._path = path
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_WRONLY, 0o666)
        except OSError as error:
            raise OutputError(f"{path} cannot be written: {error.strerror or error}") from error
        self.release = weakref.finalize(self, os.close, descriptor)
        try:
            lock_file(descriptor)
            if os.fstat(descriptor).st_nlink == 0:  # the previous owner has just removed the file
                raise BlockingIOError
        except BlockingIOError as error:
            self.release()
            raise SearchError(taken) from error
        except OSError:  # a file system without locks
            pass

    def __exit__(self, *_: object) -> None:
        """Remove the file and release the lock."""
        with suppress(OSError):  # some systems do not remove an open file
            self._path.unlink(missing_ok=True)
        self.release()
