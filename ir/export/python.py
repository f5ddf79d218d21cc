"""Format python: a script that runs the placed model with openvino and numpy alone.

For the work-conserving executor the script needs hsdag, which is that executor.
"""

from __future__ import annotations

from pathlib import Path
from pprint import pformat
from typing import final

import openvino as ov

from hsdag.ir.device import PLUGIN_LIBRARIES, DeviceSpec
from hsdag.ir.errors import OptionError
from hsdag.ir.export.base import Exporter, deployed_map, unplaced_clone, write_ir
from hsdag.ir.placement import Placement, write_atomically


@final
class PythonExporter(Exporter):
    """FILE.py; with the model at hand also FILE.xml and FILE.bin, the placed model that the script reads."""

    def write(self, placement: Placement, model: ov.Model | None, out_path: Path) -> list[Path]:
        """Write the script and, where the model is at hand, the IR beside it."""
        if out_path.suffix != ".py":
            raise OptionError(f"--format python writes a script: end the output's name in .py, not {out_path}")
        if placement.executor == "work-conserving":
            return _write_side_by_side(placement, model, out_path)
        placed = None if model is None else placement.apply(model.clone())
        default = f"{placement.model.name}.xml" if placed is None else out_path.with_suffix(".xml").name
        specs = [device.spec() for device in placement.devices if device.name in placement.used_devices]
        affinity = deployed_map(placement, placed)
        text = _HEAD + "\n".join(
            (
                f"DEFAULT_MODEL = {default!r}",
                "# Name, plugin library of a device to be added, properties.",
                "DEVICES = [",
                *(f"    {_device(spec)!r}," for spec in specs),
                "]",
                "AFFINITY = {",
                *(f"    {op!r}: {device!r}," for op, device in affinity.items()),
                "}",
            )
        )
        beside = [] if placed is None else write_ir(placed, out_path.with_suffix(".xml"))
        write_atomically(out_path, f"{text}\n\n\n{_SHARED}{_BODY}".encode())
        return [out_path, *beside]


def _write_side_by_side(placement: Placement, model: ov.Model | None, out_path: Path) -> list[Path]:
    """The script for the work-conserving executor; beside it the model as it is, for that executor cuts it itself."""
    checked = None if model is None else unplaced_clone(placement, model)
    default = f"{placement.model.name}.xml" if checked is None else out_path.with_suffix(".xml").name
    document = pformat(placement.model_dump(exclude_none=True), width=100, sort_dicts=False)
    beside = [] if checked is None else write_ir(checked, out_path.with_suffix(".xml"))
    text = f"{_SIDE_BY_SIDE_HEAD}DEFAULT_MODEL = {default!r}\nPLACEMENT = {document}\n\n\n{_SHARED}{_SIDE_BY_SIDE_BODY}"
    write_atomically(out_path, text.encode())
    return [out_path, *beside]


def _device(spec: DeviceSpec) -> tuple[str, str | None, dict[str, str]]:
    library = PLUGIN_LIBRARIES[spec.plugin.partition(".")[0]] if spec.is_added else None
    return spec.openvino_name, library, dict(spec.properties)


_SHARED = '''def random_inputs(compiled):
    """One array per input: normal floats, zeros and ones for integers."""
    rng = np.random.default_rng(0)
    inputs = []
    for port in compiled.inputs:
        if port.get_partial_shape().is_dynamic:
            sys.exit(f"input {port.get_any_name()!r} has a dynamic shape: save the model with fixed shapes")
        shape, dtype = list(port.get_shape()), port.get_element_type().to_dtype()
        if np.issubdtype(dtype, np.floating):
            inputs.append(rng.standard_normal(shape).astype(dtype))
        else:
            inputs.append(rng.integers(0, 2, shape).astype(dtype))
    return inputs


def model_path():
    """The file that the command line names, or the one beside this script."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name(DEFAULT_MODEL)
    if not path.exists():
        sys.exit(f"no such file: {path}; usage: python {sys.argv[0]} MODEL.xml")
    return path


'''

_HEAD = '''"""Runs a model with every op on the device it was placed on: python THIS_FILE [MODEL.xml]."""

import sys
import time
from pathlib import Path

import numpy as np
import openvino as ov

'''

_BODY = '''def register_devices(core):
    """Add the devices that OpenVINO does not have by itself, and set the properties of all."""
    for name, library, properties in DEVICES:
        loaded = name.partition(".")[0]
        if library is not None and loaded not in {d.partition(".")[0] for d in core.available_devices}:
            core.register_plugin(library, loaded)
        if properties:
            core.set_property(loaded, properties)


def place(model):
    """Set the affinity of every op by its name; the ops of the model must be those of the map."""
    ops = model.get_ordered_ops()
    names = [op.get_friendly_name() for op in ops]
    odd = sorted(set(names) ^ set(AFFINITY))
    if odd:
        sys.exit(f"the model's ops are not those of the affinity map: {len(odd)} differ, the first is {odd[0]!r}")
    if len(set(names)) != len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        sys.exit(f"several ops of the model are named {repeated!r}: run the model that was exported with the placement")
    for op, name in zip(ops, names):
        op.get_rt_info()["affinity"] = AFFINITY[name]


def main():
    path = model_path()
    core = ov.Core()
    register_devices(core)
    model = core.read_model(path)
    place(model)
    names = [name for name, _, _ in DEVICES]
    if len(names) > 1:
        kept = {name: properties for name, _, properties in DEVICES if properties}  # HETERO overrides the core's
        config = {"DEVICE_PROPERTIES": kept} if kept else {}
        compiled = core.compile_model(model, "HETERO:" + ",".join(names), config)
        print(f"submodels: {compiled.get_property('HETERO_NUMBER_OF_SUBMODELS')}")
    else:
        compiled = core.compile_model(model, names[0])
        print("submodels: 1")
    inputs = random_inputs(compiled)
    request = compiled.create_infer_request()
    request.infer(inputs)
    start = time.perf_counter()
    request.infer(inputs)
    print(f"latency_ms: {1000 * (time.perf_counter() - start):.3f}")


if __name__ == "__main__":
    main()
'''

_SIDE_BY_SIDE_HEAD = '''"""Runs a placed model, its devices side by side: python THIS_FILE [MODEL.xml]."""

import sys
from pathlib import Path

import hsdag
import numpy as np

'''

_SIDE_BY_SIDE_BODY = """def main():
    path = model_path()
    placement = hsdag.Placement.model_validate(PLACEMENT)
    with hsdag.compile_work_conserving(path, placement) as compiled:
        print(f"subgraphs: {len(compiled.cut.subgraphs)}")
        request = compiled.create_infer_request()
        request.infer(random_inputs(compiled))
        request.infer()
        print(f"latency_ms: {request.latency:.3f}")


if __name__ == "__main__":
    main()
"""

EXPORTER = PythonExporter()
