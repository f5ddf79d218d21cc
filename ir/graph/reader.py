"""Reading models: anything that OpenVINO reads becomes an ov.Model with fixed shapes."""

from __future__ import annotations

import math
import os
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import openvino as ov
from openvino.frontend import FrontEndManager

from hsdag.base.errors import FLAGS_VARIABLE, ModelError, OptionError, last_line, option
from hsdag.base.files import MODEL_SUFFIXES, new_files
from hsdag.ir.graph.model_guard import GUARD

Shapes = Mapping[str, tuple[int, ...]]
"""Fixed shape per input name; the empty name stands for the only input."""

LIKELY_SIZE = 64
LIKELY_TOKENS = "128,1+1024"

TOKEN_INPUTS = ("input_ids", "attention_mask", "position_ids", "beam_idx")
"""Inputs of a language model whose shapes ``--tokens`` gives."""

EMBEDDED_INPUT = "inputs_embeds"
"""Input of a language model that replaces ``input_ids`` where it gets more than text: a vector for each token."""

CHAT_TOKENS = "1024,1+1024@256"
"""Tokens for which a generating network is placed by default: a long prompt, and an answer of 256 tokens."""

NETWORKS = ("openvino_model.xml", "openvino_language_model.xml", "openvino_decoder_model.xml")
"""Names of the network in a folder of optimum-intel or a model hub: the generating network, or the only one."""

NO_CONVERTER = "Please check that model format"
"""Part of OpenVINO's message about a file that no converter takes."""

SAVED_MODEL = "saved_model.pb"
"""File by which a folder is recognised as a TensorFlow SavedModel."""

EXTENSIONS_VARIABLE = "HSDAG_EXTENSIONS"
"""Environment variable with libraries of custom operations, separated as in PATH; ``--extension`` adds to them."""

OF_READING = (EXTENSIONS_VARIABLE, FLAGS_VARIABLE)
"""Environment variables that every request gives to the reader process, which may have been started without them."""

_FAILED_NODE = re.compile(r"ONNX node '<Node\((?P<type>.*?)\): (?P<output>.*?)>'.*\n(?:.+\n)*?(?P<why>.+)\n\s*\n")
"""Front end's message about a node that it cannot convert; the reason is the last line of the paragraph."""

_UNKNOWN_OPS = re.compile(r"No conversion rule found for operations: (.*)|Cannot create (\S+) layer")
"""OpenVINO's message about ops that it does not know."""

_DATA_TAG = re.compile(rb"<data\s[^>]*>")
_OFFSET = re.compile(rb'\soffset="(\d{1,99})"')
_SIZE = re.compile(rb'\ssize="(\d{1,99})"')
_SHAPE_ITEM = re.compile(r"\s*([^\[\],\s][^\[\]]*?)?\s*\[\s*(\d{1,99}(?:\s*,\s*\d{1,99})*)?\s*\]\s*(?:,|$)")


def model_file(source: Any, model: ov.Model, stack: ExitStack) -> Path:
    """Return a source that is a path; otherwise write ``model`` to a file, which is removed when ``stack`` closes."""
    if isinstance(source, str | Path):
        return Path(source)
    folder = tempfile.TemporaryDirectory(prefix="hsdag-", ignore_cleanup_errors=True)  # mapped files may have to stay
    path = Path(stack.enter_context(folder)) / "model.xml"
    save_ir(model, path, GIVE_THE_FILE)
    return path


GIVE_THE_FILE = "give the file that the model comes from, which other processes can read"
"""Advice about a model that cannot be saved for another process."""


def export_otherwise() -> str:
    """Return advice about a model that cannot be saved with its placement."""
    return f"use {option('format')} json, and hsdag.compile_model(MODEL, PLACEMENT) with the file that it comes from"


def save_ir(model: ov.Model, path: Path, advice: str) -> ov.Model:
    """Write PATH.xml and PATH.bin, check that OpenVINO reads them, and return the model as it was read.

    Raises ModelError with ``advice`` where it does not. OpenVINO writes constants of no type and ops that a front end
    makes outside any opset, such as ONNX's GroupQueryAttention, but does not read them.
    """
    ov.save_model(model, path, compress_to_fp16=False)
    try:
        return _core().read_model(path)
    except RuntimeError as error:
        unknown = _UNKNOWN_OPS.search(str(error))
        what = "it" if unknown is None else f"its {unknown[1] or unknown[2]}"
        name = model.get_friendly_name()
        raise ModelError(f"model {name!r} cannot be saved, as OpenVINO does not read {what} again: {advice}") from error


def write_ir(model: ov.Model, xml_path: Path) -> list[Path]:
    """Write ``xml_path`` and the .bin beside it, both or neither, and return their paths.

    Raises OutputError, and ModelError where OpenVINO would not read them.
    """
    with new_files(xml_path) as folder:
        save_ir(model, folder / xml_path.name, export_otherwise())
    return [xml_path, xml_path.with_suffix(".bin")]


def load_model(
    source: Any,
    shapes: Shapes | None = None,
    *,
    spare: Shapes | None = None,
    example_input: Any = None,
    dynamic: bool = False,
    guarded: bool = True,
) -> ov.Model:
    """Load an ``ov.Model`` with static inputs.

    Args:
        source: A path, an ``ov.Model``, which is reshaped in place, or a torch module, which is converted.
        shapes: Shapes of inputs by name.
        spare: Shapes of inputs that would otherwise be dynamic.
        example_input: Input for converting a torch module by tracing.
        dynamic: Whether inputs may stay dynamic.
        guarded: Whether another process reads a file first; false in a process that may crash.

    A model that is read or converted is cloned: OpenVINO's clones and IR files have a value for every Pad, a front
    end's models may lack it, and a placement has to fit all three.

    Raises ModelError when the file is missing, is not a model, is truncated, has a weights file of another
    size, has dynamic inputs that are not fixed, or reshapes a tensor to another number of elements.
    """
    if isinstance(source, ov.Model):
        model = source
    elif isinstance(source, str | Path):
        model = read_model_file(network_in(Path(source)), shapes, spare, guarded=guarded).clone()
        model.set_friendly_name(name_of_model(Path(source)))  # front ends give all models the same name
    else:
        model = _converted(source, example_input).clone()
        spare = {**_shapes_of(example_input, model), **(spare or {})}
    fix_shapes(model, shapes or {}, spare, dynamic=dynamic)
    _check_reshapes(model)
    return model


def _check_reshapes(model: ov.Model) -> None:
    """Raise ModelError where a Reshape has another number of elements than its input.

    OpenVINO refuses that only for patterns without a zero, and otherwise writes beyond the end of a tensor (2026.4.1).
    """
    for node in model.get_ops():
        if node.get_type_name() != "Reshape":
            continue
        before, after = node.get_input_partial_shape(0), node.get_output_partial_shape(0)
        if before.is_static and after.is_static and math.prod(before.to_shape()) != math.prod(after.to_shape()):
            raise ModelError(
                f"{node.get_friendly_name()!r} reshapes {list(before.to_shape())} to {list(after.to_shape())}, another "
                "number of elements, and OpenVINO would write beyond the end of a tensor: correct its pattern"
            )


def _shapes_of(example: Any, model: ov.Model) -> dict[str, tuple[int, ...]]:
    """Return the shapes of an example's tensors by input; empty if their number differs from the model's inputs."""
    tensors = example.values() if isinstance(example, Mapping) else example
    tensors = list(tensors) if isinstance(example, Mapping | tuple | list) else [example]
    if len(tensors) != len(model.inputs) or not all(hasattr(tensor, "shape") for tensor in tensors):
        return {}
    return {input_name(port): tuple(tensor.shape) for port, tensor in zip(model.inputs, tensors, strict=True)}


def network_in(path: Path) -> Path:
    """Return the network in a folder with tokenizer and configuration beside it; any other path as it is."""
    return next((path / name for name in NETWORKS if (path / name).is_file()), path)


def name_of_model(path: Path) -> str:
    """Return the name of a model that is a file or folder."""
    return path.resolve().name if path.is_dir() else path.stem


def is_generating(model: ov.Model) -> bool:
    """Return whether a network gives logits and keeps a state for each beam, as language models that generate do."""
    inputs, outputs = ({name for port in ports for name in port.get_names()} for ports in (model.inputs, model.outputs))
    return {"beam_idx", "attention_mask"} <= inputs and "logits" in outputs and bool(model.get_sinks())


def check_model_path(path: Path) -> None:
    """Raise ModelError unless the path is a file, a SavedModel's folder, or a folder with an OpenVINO network."""
    path = network_in(path)
    if not path.exists():
        raise ModelError(f"no such file: {path}; give an OpenVINO IR (.xml), ONNX or other model file")
    if path.is_dir() and not (path / SAVED_MODEL).is_file():
        raise ModelError(f"{path} is a folder without {SAVED_MODEL} or {NETWORKS[0]}; give the model file inside it")


def _converted(module: Any, example_input: Any) -> ov.Model:
    """Convert a torch module, or whatever else ``ov.convert_model`` takes. Raises ModelError when it fails."""
    from openvino.tools.ovc.error import Error as ConversionError  # processes that only read models do not load it

    try:
        with quiet_conversion():
            return ov.convert_model(module, example_input=example_input)
    except (RuntimeError, ValueError, TypeError, ConversionError) as error:
        hint = "; give example_input" if example_input is None else ""
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(f"OpenVINO cannot convert this {type(module).__name__} ({reason}){hint}") from error


@contextmanager
def quiet_conversion() -> Iterator[None]:
    """Convert without telemetry to OpenVINO's makers, and without a warning that no user can act on.

    Only running in CI stops the telemetry for one process. The converter uses torch.jit, which is deprecated.
    """
    before = os.environ.get("CI")
    os.environ["CI"] = "true"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        if before is None:
            del os.environ["CI"]
        else:
            os.environ["CI"] = before


def read_model_file(
    path: Path, shapes: Shapes | None = None, spare: Shapes | None = None, *, guarded: bool = True
) -> ov.Model:
    """Read the model in a file. Raises ModelError with one line.

    If ``guarded``, another process reads it first and gives it its shapes, so that it crashes there if at all.
    """
    check_model_path(path)
    if guarded:
        GUARD.check(path, shapes or {}, spare or {}, {name: os.environ.get(name, "") for name in OF_READING})
    elif path.suffix == ".xml":
        _check_ir_files(path)
    try:
        if path.suffix == ".gguf":  # a Core does not read GGUF (2026.4.1)
            front_end = FrontEndManager().load_by_framework("gguf")
            return front_end.convert(front_end.load(str(path)))
        return _core().read_model(path)
    except (RuntimeError, UnicodeDecodeError) as error:  # the latter for messages with names that are not text
        failed = _FAILED_NODE.search(str(error))
        if failed is not None:
            named = f"its {failed['type']} that makes {failed['output']!r}"
            raise ModelError(f"{path}: OpenVINO cannot convert {named}: {failed['why']}") from error
        unknown = _UNKNOWN_OPS.search(str(error))
        if unknown is None:
            why = last_line(error)
            why = _why_unread(path) if NO_CONVERTER in why else why
            raise ModelError(f"{path} is not a model that OpenVINO can read: {why}") from error
        library = "name the library that defines them with 'hsdag --extension LIBRARY COMMAND ...'"
        if path.suffix == ".xml":  # ops of front ends can be written to an IR, but not read
            library = f"give the file that it was converted from, or {library}"
        what = f"operations that OpenVINO does not know ({unknown[1] or unknown[2]})"
        raise ModelError(f"{path} has {what}: {library}") from error


def _why_unread(path: Path) -> str:
    """Return what is wrong with a file that no converter takes."""
    if path.suffix in MODEL_SUFFIXES:
        return "the file is empty" if path.is_file() and not path.stat().st_size else "the file is damaged or cut short"
    return f"expected one of {', '.join(MODEL_SUFFIXES)}, or the folder of a SavedModel"


def _core() -> ov.Core:
    """Return a Core that knows the operations of the libraries named by the environment."""
    return _core_with(tuple(filter(None, os.environ.get(EXTENSIONS_VARIABLE, "").split(os.pathsep))))


@cache
def _core_with(libraries: tuple[str, ...]) -> ov.Core:
    """Return a Core that knows the operations of the libraries; cached, as they would be unloaded with the Core.

    Raises ModelError for a file that is not a library of operations.
    """
    core = ov.Core()
    for library in libraries:
        try:
            core.add_extension(library)
        except RuntimeError as error:
            raise ModelError(f"{library} is not a library of OpenVINO operations: {last_line(error)}") from error
    return core


def input_shapes(shape: str | Mapping[str, Sequence[int]] | None) -> dict[str, tuple[int, ...]]:
    """Return shapes by input name, parsing a text in the form of ``--shape``. Raises OptionError for other forms."""
    if isinstance(shape, str):
        return parse_shapes(shape)
    return {name: tuple(sizes) for name, sizes in (shape or {}).items()}


def parse_shapes(text: str, parameter: str = "shape", least: int = 1) -> dict[str, tuple[int, ...]]:
    """Parse shapes from ``name[1,3,224,224],other[1,8]`` or, for a model with one input, ``1,3,224,224``.

    Raises OptionError that names ``parameter`` when the text has another form or a size below ``least``.
    """
    plain = text.strip().strip("[]")
    if re.fullmatch(r"\d{1,99}(\s*,\s*\d{1,99})*", plain):
        shapes = {"": tuple(int(size) for size in plain.split(","))}
    else:
        shapes = {}
        end = 0
        while end < len(text):
            match = _SHAPE_ITEM.match(text, end)
            if match is None:
                raise OptionError(f"{option(parameter)} {text!r} is not of the form NAME[1,3,224,224] or 1,3,224,224")
            sizes = match[2].split(",") if match[2] else []
            if (match[1] or "") in shapes:
                raise OptionError(f"{option(parameter)} {text!r} gives input {match[1] or ''!r} two shapes")
            shapes[match[1] or ""] = tuple(int(size) for size in sizes)
            end = match.end()
    if not shapes or any(not least <= size < 2**31 for shape in shapes.values() for size in shape):
        raise OptionError(f"{option(parameter)} {text!r}: every size must be at least {least} and below 2^31")
    return shapes


def _check_ir_files(path: Path) -> None:
    """Compare an .xml with its .bin before OpenVINO reads them, as it accepts a .bin of another model."""
    text = path.read_bytes()
    if b"<net" not in text[:4096]:
        raise ModelError(f"{path} is not an OpenVINO IR: it has no <net> element")
    if b"</net>" not in text[-4096:]:
        raise ModelError(f"{path} is truncated: its <net> element is never closed; export the model again")
    needed = 0
    for tag in _DATA_TAG.findall(text):
        offset, size = _OFFSET.search(tag), _SIZE.search(tag)
        if offset and size:
            needed = max(needed, int(offset[1]) + int(size[1]))
    weights = path.with_suffix(".bin")
    if not weights.exists():
        if needed:
            raise ModelError(f"{weights} is missing: it holds the weights of {path.name} ({needed} bytes)")
        return
    size_bytes = weights.stat().st_size
    if size_bytes < needed or (size_bytes > needed > 0):
        raise ModelError(
            f"{weights} has {size_bytes} bytes, but {path.name} needs {needed}: they do not belong together"
        )


def fix_shapes(model: ov.Model, shapes: Shapes, spare: Shapes | None = None, *, dynamic: bool = False) -> None:
    """Reshape the inputs that ``shapes`` names, in place; ``spare`` has shapes for those that would stay dynamic.

    With ``dynamic`` inputs may stay so. Raises ModelError for a shape of an input that is not there, shapes that do
    not fit, and dynamic inputs that remain.
    """
    names = ", ".join(input_name(port) for port in model.inputs)
    wanted: dict[Any, ov.PartialShape] = {}
    for name, shape in shapes.items():
        if name == "" and len(model.inputs) != 1:
            raise ModelError(f"the model has {len(model.inputs)} inputs ({names}): name them in {option('shape')}")
        port = model.inputs[0] if name == "" else _input_called(model, name)
        if port is None:
            raise ModelError(f"a shape is given for input {name!r}, but the model's inputs are {names}")
        wanted[port] = ov.PartialShape(list(shape))
    for name, shape in (spare or {}).items():
        port = _input_called(model, name)
        if port is not None and port.get_partial_shape().is_dynamic:
            wanted.setdefault(port, ov.PartialShape(list(shape)))
    try:
        if wanted:
            model.reshape(wanted)
    except RuntimeError as error:
        raise ModelError(f"the model does not take the given shapes of its inputs: {last_line(error)}") from error
    left = {input_name(port): port.get_partial_shape() for port in model.inputs if port.get_partial_shape().is_dynamic}
    if left and not dynamic:
        listed = ", ".join(f"{name} {shape}" for name, shape in left.items())
        parameter, value = likely_sizes(model.inputs) or ("", "")
        typical = f"leave them and give typical shapes with {option('data_shape')}"
        hint = f"fix them, such as {option(parameter)} '{value}', or {typical}"
        if parameter == "tokens":
            hint = f"say how many tokens are typical, such as {option('tokens')} {value}"
        raise ModelError(f"the model has inputs of dynamic shapes ({listed}): {hint}")


def likely_sizes(ports: Sequence[Any]) -> tuple[str, str] | None:
    """Return the parameter, and its value, that gives dynamic inputs plausible sizes; None where all are fixed."""
    left = {input_name(port): example_shape(port) for port in ports if port.get_partial_shape().is_dynamic}
    if left.keys() & {TOKEN_INPUTS[0], EMBEDDED_INPUT} and left.keys() <= {*TOKEN_INPUTS, EMBEDDED_INPUT}:
        return "tokens", LIKELY_TOKENS
    return ("shape", ",".join(left.values())) if left else None


def example_shape(port: Any) -> str:
    """Return an input with plausible sizes, in the form of ``--shape``: an open first size is 1, others are 64."""
    shape = port.get_partial_shape()
    if shape.rank.is_dynamic:
        return f"{input_name(port)}[1,{LIKELY_SIZE}]"
    sizes = []
    for axis, size in enumerate(shape):
        most = LIKELY_SIZE if size.get_max_length() < 0 else size.get_max_length()
        sizes.append(max(min(1 if axis == 0 else LIKELY_SIZE, most), size.get_min_length()))
    return f"{input_name(port)}[{','.join(map(str, sizes))}]"


def input_name(port: Any) -> str:
    """Return the name of a model's input or output: its first tensor name, else its op's name."""
    names = port.get_names()
    return min(names) if names else str(port.get_node().get_friendly_name())


def _input_called(model: ov.Model, name: str) -> Any:
    return next((p for p in model.inputs if name in {*p.get_names(), p.get_node().get_friendly_name()}), None)
