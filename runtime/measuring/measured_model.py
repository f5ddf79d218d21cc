"""The model of a measuring process, and the inferences that are made of it.

Legend: R results.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import openvino as ov

from hsdag.base.errors import ModelError, option
from hsdag.ir.graph.build import draws, graph_of, name_uniquely
from hsdag.ir.graph.computation_graph import ComputationGraph
from hsdag.ir.graph.reader import load_model
from hsdag.ir.graph.state import reached_from
from hsdag.ir.placement.prepared import PreparedModel, prepare
from hsdag.runtime.measuring.inferences import CourseRunner, InferenceSequence, make_courses
from hsdag.runtime.measuring.messages import WorkerSetup


class MeasuredModel:
    """The model of a setup, each part of which is made when it is first needed."""

    def __init__(self, setup: WorkerSetup) -> None:
        self.setup = setup

    @cached_property
    def model(self) -> ov.Model:
        """Return the model with unique names, since devices are asked about ops by name. Raises ModelError."""
        assert self.setup.model is not None
        model = load_model(self.setup.model, self.setup.shapes, dynamic=True, guarded=False)
        name_uniquely(model)
        return model

    @cached_property
    def graph(self) -> ComputationGraph:
        """Return the graph of the model."""
        return graph_of(self.model)

    @cached_property
    def courses(self) -> tuple[InferenceSequence, ...]:
        """Return the inferences to run. Raises ModelError for open shapes without scenarios, HsdagError for inputs."""
        if not self.setup.scenarios and any(port.get_partial_shape().is_dynamic for port in self.model.inputs):
            raise ModelError(
                f"the model has inputs of dynamic shapes: give {option('data_shape')}, or fix them with "
                f"{option('shape')}"
            )
        return make_courses(self.model, self.setup.scenarios, self.setup.seed, self.setup.inputs)

    @cached_property
    def prepared(self) -> PreparedModel:
        """Return the model prepared for HETERO; made for the first placement."""
        return prepare(self.model, self.graph)

    @property
    def has_state(self) -> bool:
        """Return whether the model keeps state from one inference to the next."""
        return bool(self.model.get_variables())

    @cached_property
    def drawn(self) -> list[bool]:
        """Return [R] whether a result depends on random numbers."""
        sources = [v for v, node in enumerate(self.model.get_ordered_ops()) if draws(node)]
        reached = reached_from(self.graph, sources)
        return [bool(reached[self.graph.index_of[node.get_friendly_name()]]) for node in self.model.get_results()]

    def all_draws(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the name of the op of each draw of random numbers, and the draw's attributes, which have its seeds."""
        for node in self.model.get_ordered_ops():
            for draw in draws(node):
                yield node.get_friendly_name(), draw.get_attributes()

    def runner(self, compiled: Any) -> CourseRunner:
        """Return a runner of the model's inferences by a request of a compiled model."""
        return CourseRunner(compiled.create_infer_request(), self.courses, stateful=self.has_state)
