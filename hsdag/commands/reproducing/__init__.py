"""Reproducing: how each table of the papers is had here."""

from hsdag.commands.reproducing.base import Effort, Reproduction, reproduce
from hsdag.commands.reproducing.recipes import RECIPES

__all__ = ["RECIPES", "Effort", "Reproduction", "reproduce"]
