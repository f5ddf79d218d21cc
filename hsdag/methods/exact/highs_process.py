"""HiGHS in a process of its own, because it cannot share one with OR-Tools; run as a module.

It reads a program as JSON from stdin and writes events to stdout, a JSON list a line: ["solution", values],
["bound", value] and at last ["end", status, bound].
"""

from __future__ import annotations

import json
import sys
from typing import Any, TextIO

import highspy
import numpy as np

from hsdag.ir.processes import die_with_parent


def main() -> None:
    """Solve the one program that comes in."""
    die_with_parent()
    request = json.load(sys.stdin)
    out = sys.stdout
    highs = highspy.Highs()  # type: ignore[no-untyped-call]
    highs.setOptionValue("output_flag", False)
    for name, value in request["options"].items():
        highs.setOptionValue(name, value)
    highs.passModel(_program(request))
    if request["hint"] is not None:
        index, values = request["hint"]
        highs.setSolution(len(index), np.asarray(index, dtype=np.int32), np.asarray(values, dtype=np.float64))
    highs.cbMipImprovingSolution += lambda event: _say(out, "solution", list(event.data_out.mip_solution))
    last = [-np.inf]

    def on_wait(event: Any) -> None:
        if event.data_out.mip_dual_bound > last[0]:
            last[0] = event.data_out.mip_dual_bound
            _say(out, "bound", last[0])

    highs.cbMipInterrupt += on_wait
    highs.run()
    info, status = highs.getInfo(), highs.getModelStatus()
    if info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible:
        _say(out, "solution", list(highs.getSolution().col_value))
    _say(out, "end", highs.modelStatusToString(status), float(info.mip_dual_bound))


def _program(request: dict[str, Any]) -> highspy.HighsLp:
    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = len(request["cost"]), len(request["row_low"])
    program.col_cost_, program.offset_ = request["cost"], request["constant"]
    program.col_lower_, program.col_upper_ = request["low"], request["high"]
    program.row_lower_, program.row_upper_ = request["row_low"], request["row_high"]
    program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    program.a_matrix_.start_ = request["row_start"]
    program.a_matrix_.index_, program.a_matrix_.value_ = request["index"], request["value"]
    kinds = highspy.HighsVarType
    program.integrality_ = [kinds.kInteger if whole else kinds.kContinuous for whole in request["is_whole"]]
    return program


def _say(out: TextIO, *event: Any) -> None:
    out.write(json.dumps(event) + "\n")
    out.flush()


if __name__ == "__main__":
    main()
