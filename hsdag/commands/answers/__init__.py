"""The JSON answers of commands as types, a file for each command that holds ``Answer``; schemas are made from them."""

from hsdag.commands.answers.schema import answering_commands, schema_of

__all__ = ["answering_commands", "schema_of"]
