"""Run the command line: parse arguments, call the library, print results to stdout and all else to stderr."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import signal
import sys
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import iter_modules
from types import FrameType
from typing import Any

import typer
from typer.core import TyperGroup

import hsdag
import hsdag.cli
from hsdag.base.errors import FLAGS_VARIABLE, HsdagError
from hsdag.cli.options import Command
from hsdag.ir.graph.model_guard import GUARD

BY_USE = ("place", "bench", "explain", "report", "export", "doctor", "devices", "inspect", "profile", "models")
"""Commands listed first in the help, in this order; the others follow in alphabetical order."""

START = "Start here: hsdag place MODEL; a CPU is enough. hsdag doctor MODEL shows what the machine can do."


class ByUse(TyperGroup):
    """Command group that lists its commands in the order in which people need them."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, those of BY_USE first."""
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: (BY_USE.index(name) if name in BY_USE else len(BY_USE), name))


app = typer.Typer(
    name="hsdag",
    cls=ByUse,
    help=f"Find out, by measurement, which device should run which operation of a neural network.\n\n{START}",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
included = {file.name: f"hsdag.cli.{file.name}" for file in iter_modules(hsdag.cli.__path__) if file.name != "app"}
plug_ins = {entry.name: entry.module for entry in entry_points(group="hsdag.commands")}  # of other packages
for called, path in {**plug_ins, **included}.items():
    module = import_module(path)
    for name in getattr(module, "COMMANDS", (called,)):  # without COMMANDS, one command or group named after the file
        command = getattr(module, name, None)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name.replace("_", "-"))
        elif command is not None:
            app.command(name.replace("_", "-"), cls=Command)(command)

MODEL_SUFFIXES = (".xml", ".onnx")
USER_ERROR, DEFECT, INTERRUPTED, TERMINATED = 2, 1, 130, 143

SHORTAGES = {
    errno.ENOSPC: "the disk is full; make room, and run the command again",
    errno.EDQUOT: "the disk quota is used up; make room, and run the command again",
    errno.EFBIG: "a file has reached the size that this process may write; raise it with ulimit -f",
    errno.EMFILE: "this process has too many open files; raise the number with ulimit -n",
    errno.ENFILE: "the machine has too many open files; end other processes",
    errno.ENOMEM: "the memory does not suffice; end other processes, or take a smaller model",
    errno.ENAMETOOLONG: "the name of a file is too long; name another one",
    errno.EROFS: "the file system is read-only; name a file on another one",
}
"""Shortages and refusals of the machine that may happen in any command, with advice; they are not defects of hsdag."""

_USAGE_ERROR = typer.BadParameter.__mro__[2]
"""Base class of typer's usage errors, which typer does not export by name."""


def _version(wanted: bool) -> None:
    """Print the version and exit if it is wanted."""
    if wanted:
        typer.echo(f"hsdag {hsdag.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
    extension: list[Path] = typer.Option(
        [], "--extension", metavar="FILE", help="An OpenVINO extension library with custom operations. Repeatable."
    ),
) -> None:
    """Put extension libraries into the environment, where the measuring process finds them too."""
    if extension:
        from hsdag.ir.graph.reader import EXTENSIONS_VARIABLE  # imported here because it loads OpenVINO

        earlier = os.environ.get(EXTENSIONS_VARIABLE, "").split(os.pathsep)
        libraries = [*filter(None, earlier), *(str(path.resolve()) for path in extension)]
        os.environ[EXTENSIONS_VARIABLE] = os.pathsep.join(libraries)


class _Termination:
    """Handler of SIGTERM, which does what Ctrl-C does and remembers it for the exit code."""

    def __init__(self) -> None:
        self.has_come = False
        signal.signal(signal.SIGTERM, self._hear)

    def _hear(self, _number: int, frame: FrameType | None) -> None:
        self.has_come = True
        handler = signal.getsignal(signal.SIGINT)  # looked up now, since a running search installs its own
        if not callable(handler):
            raise KeyboardInterrupt
        handler(signal.SIGINT, frame)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with code 0 if done, 2 for a user's mistake, 1 for a defect of hsdag.

    The code is 130 after Ctrl-C and 143 after SIGTERM, which ends a command like Ctrl-C.
    """
    for stream in (sys.stdout, sys.stderr):  # do not fail on names that the console cannot show
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    termination = _Termination()
    named = sys.argv[1:] if arguments is None else arguments
    if any(argument.endswith(MODEL_SUFFIXES) and Path(argument).is_file() for argument in named):
        with contextlib.suppress(OSError):  # reading the model will report it
            GUARD.begin()  # start the process that tests the model file while this one loads its libraries
    code = run(arguments)
    sys.exit(TERMINATED if termination.has_come and code in (0, INTERRUPTED) else code)


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    before = os.environ.get(FLAGS_VARIABLE, "")
    os.environ[FLAGS_VARIABLE] = "1"
    try:
        code = app(args=arguments, prog_name="hsdag", standalone_mode=False)
    except HsdagError as error:
        return _complain(str(error), USER_ERROR)
    except (KeyboardInterrupt, typer.Abort) as error:
        if isinstance(error.__cause__, EOFError):  # typer takes any EOFError for the end of a user's input
            return _complain(_defect(error.__cause__), DEFECT)
        return _complain("interrupted", INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except MemoryError:
        return _complain(SHORTAGES[errno.ENOMEM], USER_ERROR)
    except OSError as error:
        if error.errno not in SHORTAGES:
            return _complain(_defect(error), DEFECT)
        named = f"{error.filename}: " if error.filename else ""
        return _complain(f"{named}{SHORTAGES[error.errno]}", USER_ERROR)
    except Exception as error:  # noqa: BLE001 - users get one line, never a traceback
        if isinstance(error, _USAGE_ERROR) and type(error).__name__.startswith("NoArgsIsHelp"):
            typer.echo(error.format_message(), err=True)  # type: ignore[attr-defined]
            return USER_ERROR
        if isinstance(error, _USAGE_ERROR):
            return _complain(error.format_message(), USER_ERROR)  # type: ignore[attr-defined]
        return _complain(_defect(error), DEFECT)
    finally:
        os.environ[FLAGS_VARIABLE] = before
    return code if isinstance(code, int) else 0


def _complain(message: str, code: int) -> int:
    """Print an error message on one line of stderr; return ``code``."""
    line = " ".join(message.split())
    typer.echo(f"hsdag: {line}", err=True)
    return code


def _defect(error: Exception) -> str:
    """Return a message that asks to report an unexpected exception, with the function and line that raised it."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    where = f" in {frame.tb_frame.f_code.co_name}, line {frame.tb_lineno}" if frame else ""
    kind = type(error).__name__
    return f"this is a defect of hsdag, please report it with the command and the model: {kind}{where}: {error}"
