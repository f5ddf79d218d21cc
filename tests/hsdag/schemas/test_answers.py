"""JSON schemas: every command with --json has one, which forbids what it does not name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from hsdag.base.errors import OptionError
from hsdag.cli.app import app, run
from hsdag.schemas import RESULTS, schema_of


def commands_with_json() -> Iterator[str]:
    """Names of all commands that take --json, such as models list."""
    import typer

    def walk(command: Any, path: tuple[str, ...]) -> Iterator[str]:
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, (*path, name))
        if any("--json" in parameter.opts for parameter in command.params):
            yield " ".join(path)

    return walk(typer.main.get_command(app), ())


def test_every_command_with_json_has_a_schema_and_no_other() -> None:
    found = set(commands_with_json())
    missing = found - set(RESULTS)
    assert not missing, f"name the models of their answers in hsdag/schemas.py: {missing}"
    assert found == set(RESULTS)


def test_a_schema_is_one_and_forbids_unknown_keys() -> None:
    for command in RESULTS:
        schema = schema_of(command)
        Draft202012Validator.check_schema(schema)
        parts = [schema, *schema.get("$defs", {}).values()]
        assert all(part["additionalProperties"] is False for part in parts if "properties" in part), command
        assert not Draft202012Validator(schema).is_valid({"unknown": 1}), command


def test_a_schema_is_printed_by_the_name_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", "models", "list"]) == 0
    assert json.loads(capsys.readouterr().out) == schema_of("models list")
    with pytest.raises(OptionError, match="no JSON answer is known of hsdag plaice; choose one of bench, "):
        schema_of("plaice")
