"""Give the readers of a tensor another one, in models of OpenVINO."""

from __future__ import annotations

import openvino as ov


def read_instead(old: ov.Output, new: ov.Output) -> None:
    """Make all present readers of ``old`` read ``new``, which must not be computed from ``old`` in turn."""
    for reader in old.get_target_inputs():
        reader.replace_source_output(new)


def replace_op(node: ov.Node, by: ov.Node) -> None:
    """Make all readers of the only output of ``node`` read that of ``by``, which gets its name."""
    by.set_friendly_name(node.get_friendly_name())
    read_instead(node.output(0), by.output(0))
