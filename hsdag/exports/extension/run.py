"""Run the model of this folder on the devices that it was placed on, using only OpenVINO and NumPy.

    python run.py [--input FILE.npz] [--output FILE.npz]

An .npz file has an array for each input, under its name or, if it has none, its number. Without a file, inputs are
random, with the sizes that the model was placed for. The latency is the median of several runs after a first one.
"""

import argparse
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import openvino as ov

MODEL = "model.xml"
DEVICE = "CPU"
PROPERTIES: dict[str, Any] = {}
SIZES: list[list[int]] = []  # shape of each input, if the model does not fix them
RUNS = 10

FOLDER = Path(__file__).resolve().parent


def compiled_model() -> Any:
    """Compile the model as it was placed; plugins.xml lists devices that OpenVINO does not have by itself."""
    plugins = FOLDER / "plugins.xml"
    core = ov.Core(plugins) if plugins.exists() else ov.Core()
    core.add_extension(FOLDER / "libhsdag.so")
    return core.compile_model(FOLDER / MODEL, DEVICE, PROPERTIES)


def names_of(ports: list[Any]) -> list[str]:
    """Return a name for each port: its own, or its number if it has none or an earlier port has the same."""
    names: list[str] = []
    for k, port in enumerate(ports):
        name = port.get_any_name() if port.get_names() else str(k)
        names.append(name if name not in names else str(k))
    return names


def random_input(port: Any, sizes: list[int] | None, rng: np.random.Generator) -> ov.Tensor:
    """Return normal floats, zeros of other types, or empty strings; sizes that are not given are the least possible."""
    shape = port.get_partial_shape()
    if sizes is None:
        sizes = [] if shape.rank.is_dynamic else [max(size.get_min_length(), int(size.is_dynamic)) for size in shape]
    if port.get_element_type() == ov.Type.string:
        return ov.Tensor(np.full(sizes, ""))
    tensor = ov.Tensor(port.get_element_type(), sizes)
    is_float = np.issubdtype(tensor.data.dtype, np.floating)
    tensor.data[...] = rng.standard_normal(tensor.data.shape) if is_float else 0
    return tensor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", help="FILE.npz with an array for each input")
    parser.add_argument("--output", help="FILE.npz to write the outputs to")
    arguments = parser.parse_args()
    compiled = compiled_model()
    request = compiled.create_infer_request()
    names, rng = names_of(compiled.inputs), np.random.default_rng(0)
    if arguments.input:
        arrays = np.load(arguments.input)
        if sorted(arrays) != sorted(names):
            sys.exit(f"{arguments.input} has {sorted(arrays)}, and the inputs are {sorted(names)}")
        inputs: Any = {k: arrays[name] for k, name in enumerate(names)}
    else:
        sizes: list[Any] = SIZES or [None] * len(names)
        inputs = {k: random_input(port, sizes[k], rng) for k, port in enumerate(compiled.inputs)}
    times = []
    for _ in range(RUNS + 1):
        for state in request.query_state():
            state.reset()
        start = time.perf_counter()
        results = request.infer(inputs)
        times.append(time.perf_counter() - start)
    print(f"latency_s: {median(times[1:]):.6f} (median of {RUNS} runs)")
    outputs = {name: results[k] for k, name in enumerate(names_of(compiled.outputs))}
    for name, array in outputs.items():
        print(f"{name}: {array.dtype} {list(array.shape)}")
    if arguments.output:
        np.savez(arguments.output, **outputs)


if __name__ == "__main__":
    main()
