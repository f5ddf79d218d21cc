"""``hsdag schema``: the JSON schema of a command's answer."""

from __future__ import annotations

from typing import Annotated

import typer

from hsdag.cli import completion
from hsdag.cli.output import print_json, print_table


def schema(
    command: Annotated[
        list[str] | None,
        typer.Argument(autocompletion=completion.answering, help="A command, such as place or models list."),
    ] = None,
) -> None:
    """Print the JSON schema of what a command prints with --json; without a command, list those that have one."""
    from hsdag.schemas.answers import answering_commands, schema_of

    if command:
        print_json(schema_of(" ".join(command)))
    else:
        print_table(None, ["command"], [[name] for name in answering_commands()])
