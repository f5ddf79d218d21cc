"""Scenarios: representative inferences of a model with dynamic shapes. Legend: S scenarios."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import openvino as ov

from hsdag.base.errors import ModelError, OptionError, option
from hsdag.ir.graph.computation_graph import FloatArray
from hsdag.ir.graph.reader import EMBEDDED_INPUT, TOKEN_INPUTS, Shapes, input_name, parse_shapes

TOKENS = re.compile(r"(\d+)(?:\+(\d+))?(?:@([^@]+))?")


@dataclass(frozen=True)
class Scenario:
    """A sequence of inferences that starts from an empty state; the last one is timed.

    Each inference has a shape per input name, where the empty name means the only input. ``weight`` is relative to that
    of the other scenarios. ``tokens`` is its item of ``--tokens``, if any: the model need not have all inputs then.
    """

    inferences: tuple[Shapes, ...]
    weight: float = 1.0
    tokens: str | None = None

    @staticmethod
    def parse(text: str) -> Scenario:
        """Parse a scenario from ``[BEFORE>]TIMED[@WEIGHT]``, each inference as ``parse_shapes`` reads it.

        Raises OptionError when the text has another form.
        """
        end = text.rfind("]") + 1
        before, at, weight = text[end:].partition("@")
        shapes = text[:end] + before
        parts = re.split(r"(?<=\])\s*>\s*", shapes) if "[" in shapes else shapes.split(">")
        if parts[0].startswith(">"):
            raise OptionError(f"{option('data_shape')} {text!r} has nothing before the first >")
        inferences = tuple(parse_shapes(part, "data_shape", least=0) for part in parts)
        return Scenario(inferences, _weight(weight, f"{option('data_shape')} {text!r}") if at else 1.0)

    @property
    def _option(self) -> str:
        """Return the option that the scenario comes from."""
        return option("data_shape") if self.tokens is None else f"{option('tokens')} {self.tokens}"

    @property
    def text(self) -> str:
        """Return the scenario in the form that ``parse`` reads."""
        shown = ">".join(_shown(shapes) for shapes in self.inferences)
        return shown if self.weight == 1.0 else f"{shown}@{self.weight:.17g}"

    @property
    def known_tokens(self) -> str | None:
        """Return its item of ``--tokens``, derived from its shapes where a file has only these; None without tokens."""
        timed = self.inferences[-1]
        if self.tokens is not None or set(timed) != set(TOKEN_INPUTS):
            return self.tokens
        ids, mask = (timed[name][-1] for name in TOKEN_INPUTS[:2])
        return f"{ids}+{mask - ids}" if mask > ids else f"{ids}"

    def of(self, model: ov.Model) -> Scenario:
        """Return the scenario with a shape for every input of a model, by ``input_name``.

        Raises ModelError for a shape of an input that is not there or that it does not take, and for inputs of dynamic
        shapes without one.
        """
        names = [{*port.get_names(), port.get_node().get_friendly_name()} for port in model.inputs]
        if self.tokens is not None and not any(of_port & {TOKEN_INPUTS[0], EMBEDDED_INPUT} for of_port in names):
            inputs = ", ".join(map(input_name, model.inputs))
            raise ModelError(
                f"{option('tokens')} is for models with an input {TOKEN_INPUTS[0]}, and this one's are {inputs}"
            )
        return replace(self, inferences=tuple(self._of_inference(model, shapes) for shapes in self.inferences))

    def _of_inference(self, model: ov.Model, shapes: Shapes) -> Shapes:
        fixed: dict[str, tuple[int, ...]] = {}
        left = dict(shapes)
        for port in model.inputs:
            names = [*sorted(port.get_names()), port.get_node().get_friendly_name(), *[""] * (len(model.inputs) == 1)]
            wanted = next((left.pop(name) for name in names if name in left), None)
            taken, name = port.get_partial_shape(), input_name(port)
            if self.tokens is not None and EMBEDDED_INPUT in names and taken.rank == 3 and taken[2].is_static:
                wanted = (*shapes[TOKEN_INPUTS[0]], taken[2].get_length())
            if wanted is None and taken.is_dynamic:
                instead = "" if self.tokens is None else f"; give all shapes with {option('data_shape')} instead"
                what = f"{self._option} gives no shape for input {name!r}, which takes {taken}"
                raise ModelError(f"{what}: {_shown(shapes)}{instead}")
            fixed[name] = tuple(taken.to_shape()) if wanted is None else wanted
            if not taken.compatible(ov.PartialShape(list(fixed[name]))):
                raise ModelError(f"{self._option}: {_shown({name: fixed[name]})}, but the model's input takes {taken}")
        if left and self.tokens is None:
            inputs = ", ".join(input_name(port) for port in model.inputs)
            raise ModelError(
                f"{option('data_shape')} gives a shape for input {next(iter(left))!r}, but the model's are {inputs}"
            )
        return fixed


def parse_scenarios(data_shapes: str | Sequence[str], tokens: str | None) -> tuple[Scenario, ...]:
    """Return the scenarios of ``--data-shape`` or ``--tokens``. Raises OptionError for both, and for other forms.

    ``tokens`` has an item for each scenario of a language model, ``NEW[+PAST][@WEIGHT]``: NEW tokens after PAST ones.
    """
    if data_shapes and tokens is not None:
        raise OptionError(f"{option('tokens')} is short for {option('data_shape')}: give one of the two")
    if tokens is not None:
        return tuple(_of_tokens(item.strip(), tokens) for item in tokens.split(","))
    return tuple(Scenario.parse(text) for text in ((data_shapes,) if isinstance(data_shapes, str) else data_shapes))


def token_words(tokens: str) -> tuple[str, int]:
    """Return what an item of ``--tokens`` times, in words, and the number of tokens that it computes."""
    new, past = _new_and_past(tokens)
    if not past:
        return f"first token after {new}", new
    return (f"next token after {past}" if new == 1 else f"{new} tokens after {past}"), new


def context_of(tokens: str) -> int:
    """Return the number of tokens in the context after an item of ``--tokens``."""
    return sum(_new_and_past(tokens))


def _new_and_past(tokens: str) -> tuple[int, int]:
    """Return the numbers of new tokens and of those before them in an item of ``--tokens``, which was parsed before."""
    match = TOKENS.fullmatch(tokens)
    assert match is not None
    return int(match[1]), int(match[2] or 0)


def shares(scenarios: Sequence[Scenario]) -> FloatArray:
    """Return [S] the weights of scenarios, scaled to a sum of 1."""
    weights = np.array([scenario.weight for scenario in scenarios])
    normalised: FloatArray = weights / weights.sum()
    return normalised


def _weight(text: str, where: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not 0 < weight < math.inf:
        raise OptionError(f"{where}: a weight is a number above 0, not {text!r}")
    return weight


def _of_tokens(item: str, tokens: str) -> Scenario:
    """Return a scenario of a language model with a batch of one.

    The last of the PAST tokens are an inference of NEW tokens where they suffice, as plugins prepare themselves in the
    first inference of a new length, which therefore takes longer.
    """
    match = TOKENS.fullmatch(item)
    if match is None:
        raise OptionError(
            f"{option('tokens')} {tokens!r}: {item!r} is not of the form NEW[+PAST][@WEIGHT], such as 1+1024@4"
        )
    new, past = int(match[1]), int(match[2] or 0)
    if not 0 < new < 2**31 or not past < 2**31:
        raise OptionError(f"{option('tokens')} {tokens!r}: {item!r} has no new token, or too many")
    steps = [past - new, new, new] if past > new else [past, new] if past else [new]
    shapes = [((1, n), (1, end), (1, n), (1,)) for n, end in zip(steps, np.cumsum(steps).tolist(), strict=True)]
    weight = _weight(match[3], f"{option('tokens')} {tokens!r}") if match[3] else 1.0
    return Scenario(tuple(dict(zip(TOKEN_INPUTS, of_inputs, strict=True)) for of_inputs in shapes), weight, item)


def _shown(shapes: Shapes) -> str:
    """Return shapes in the form that ``parse_shapes`` reads."""
    return ",".join(f"{name}[{','.join(map(str, shape))}]" for name, shape in shapes.items())
