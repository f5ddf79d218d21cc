"""Reading models: anything OpenVINO reads becomes an ov.Model with fixed shapes, and a ComputationGraph."""

from __future__ import annotations

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

from hsdag.ir.errors import ModelError, OptionError, last_line
from hsdag.ir.graph.model_guard import GUARD

Shapes = Mapping[str, tuple[int, ...]]
"""Fixed shape per input name; the empty name means the only input."""

LIKELY_SIZE = 64
LIKELY_TOKENS = "128,1+1024"

TOKEN_INPUTS = ("input_ids", "attention_mask", "position_ids", "beam_idx")
"""Inputs of a language model, of which ``--tokens`` gives the shapes."""

NO_CONVERTER = "Please check that model format"
"""In what OpenVINO says of a file that no converter takes."""

MODEL_SUFFIXES = (".xml", ".onnx", ".pb", ".tflite", ".pdmodel", ".gguf")
SAVED_MODEL = "saved_model.pb"
"""What a folder that is a model holds: TensorFlow's SavedModel."""

EXTENSIONS_VARIABLE = "HSDAG_EXTENSIONS"
"""Libraries of custom operations, separated as in PATH; ``--extension`` adds to them."""

_FAILED_NODE = re.compile(r"ONNX node '<Node\((?P<type>.*?)\): (?P<output>.*?)>'.*\n(?:.+\n)*?(?P<why>.+)\n\s*\n")
"""What a front end says of a node, and in the last line of the paragraph of why it cannot be converted."""

_DATA_TAG = re.compile(rb"<data\s[^>]*>")
_OFFSET = re.compile(rb'\soffset="(\d{1,99})"')
_SIZE = re.compile(rb'\ssize="(\d{1,99})"')
_SHAPE_ITEM = re.compile(r"\s*([^\[\],\s][^\[\]]*?)?\s*\[\s*(\d{1,99}(?:\s*,\s*\d{1,99})*)?\s*\]\s*(?:,|$)")


def model_file(source: Any, model: ov.Model, stack: ExitStack) -> Path:
    """The file that a source is; where it is none, ``model`` is written to one that goes with ``stack``."""
    if isinstance(source, str | Path):
        return Path(source)
    folder = tempfile.TemporaryDirectory(prefix="hsdag-", ignore_cleanup_errors=True)  # a mapped file may have to stay
    path = Path(stack.enter_context(folder)) / "model.xml"
    ov.serialize(model, path)
    return path


def load_model(
    source: Any,
    shapes: Shapes | None = None,
    *,
    spare: Shapes | None = None,
    example_input: Any = None,
    dynamic: bool = False,
    guarded: bool = True,
) -> ov.Model:
    """An ``ov.Model`` with static inputs from a path, an ``ov.Model`` or a torch module.

    ``shapes`` fixes inputs by name, ``spare`` those that are dynamic otherwise; with ``dynamic`` inputs may stay so.
    A torch module is converted with ``ov.convert_model`` and needs ``example_input`` where tracing does. A given
    ``ov.Model`` is reshaped in place. Files are read in another process first; not ``guarded``, where the caller is a
    process that may crash.

    What is read or converted is cloned: OpenVINO's clones and IR files have a value for every Pad, models as they come
    from a front end may lack it, and a placement has to fit all three.

    Raises ModelError when the file is missing, is not a model, is truncated, has a weights file of another
    size, or has dynamic inputs that are not fixed.
    """
    if isinstance(source, ov.Model):
        model = source
    elif isinstance(source, str | Path):
        model = read_model_file(Path(source), shapes, spare, guarded=guarded).clone()
        model.set_friendly_name(Path(source).stem)  # front ends give all models the same one
    else:
        model = _converted(source, example_input).clone()
        spare = {**_shapes_of(example_input, model), **(spare or {})}
    fix_shapes(model, shapes or {}, spare, dynamic=dynamic)
    return model


def _shapes_of(example: Any, model: ov.Model) -> dict[str, tuple[int, ...]]:
    """The shapes of tensors of an example input by input; none where they are others than the model takes."""
    tensors = example.values() if isinstance(example, Mapping) else example
    tensors = list(tensors) if isinstance(example, Mapping | tuple | list) else [example]
    if len(tensors) != len(model.inputs) or not all(hasattr(each, "shape") for each in tensors):
        return {}
    return {input_name(port): tuple(each.shape) for port, each in zip(model.inputs, tensors, strict=True)}


def check_model_path(path: Path) -> None:
    """Raise ModelError unless there is a file, or a folder that is a SavedModel."""
    if not path.exists():
        raise ModelError(f"no such file: {path}; give an OpenVINO IR (.xml), ONNX or other model file")
    if path.is_dir() and not (path / SAVED_MODEL).is_file():
        raise ModelError(f"{path} is a folder without {SAVED_MODEL}; give the model file inside it")


def _converted(module: Any, example_input: Any) -> ov.Model:
    """A torch module, or whatever else ``ov.convert_model`` takes. Raises ModelError when it does not."""
    from openvino.tools.ovc.error import Error as ConversionError  # which processes that only read models do not load

    try:
        with quiet_conversion():
            return ov.convert_model(module, example_input=example_input)
    except (RuntimeError, ValueError, TypeError, ConversionError) as error:
        hint = "; give example_input" if example_input is None else ""
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(f"OpenVINO cannot convert this {type(module).__name__} ({reason}){hint}") from error


@contextmanager
def quiet_conversion() -> Iterator[None]:
    """Convert without a report to OpenVINO's makers, and without a warning that no user can act on.

    A process can only say that it runs in CI to stop the report. The converter uses torch.jit, which is deprecated.
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
    """The model in a file, as it is. Raises ModelError with one line.

    ``guarded``, another process reads it first, and gives it the shapes that it will get; what is wrong is found there.
    """
    check_model_path(path)
    if guarded:
        GUARD.check(path, shapes or {}, spare or {}, {EXTENSIONS_VARIABLE: os.environ.get(EXTENSIONS_VARIABLE, "")})
    elif path.suffix == ".xml":
        _check_ir_files(path)
    core = _core_with(tuple(filter(None, os.environ.get(EXTENSIONS_VARIABLE, "").split(os.pathsep))))
    try:
        return core.read_model(path)
    except (RuntimeError, UnicodeDecodeError) as error:  # messages with names that are no text
        failed = _FAILED_NODE.search(str(error))
        if failed is not None:
            named = f"its {failed['type']} that makes {failed['output']!r}"
            raise ModelError(f"{path}: OpenVINO cannot convert {named}: {failed['why']}") from error
        unknown = re.search(r"No conversion rule found for operations: (.*)|Cannot create (\S+) layer", str(error))
        if unknown is None:
            why = last_line(error)
            why = _why_unread(path) if NO_CONVERTER in why else why
            raise ModelError(f"{path} is not a model that OpenVINO can read: {why}") from error
        raise ModelError(
            f"{path} has operations that OpenVINO does not know ({unknown[1] or unknown[2]}): "
            "name the library that defines them with 'hsdag --extension LIBRARY COMMAND ...'"
        ) from error


def _why_unread(path: Path) -> str:
    """What is wrong with a file that no converter takes."""
    if path.suffix in MODEL_SUFFIXES:
        return "the file is empty" if path.is_file() and not path.stat().st_size else "the file is damaged or cut short"
    return f"expected one of {', '.join(MODEL_SUFFIXES)}, or the folder of a SavedModel"


@cache
def _core_with(libraries: tuple[str, ...]) -> ov.Core:
    """A Core that knows the operations of the libraries; it lives on, for with it they would be unloaded.

    Raises ModelError for a file that is not such a library.
    """
    core = ov.Core()
    for library in libraries:
        try:
            core.add_extension(library)
        except RuntimeError as error:
            raise ModelError(f"{library} is not a library of OpenVINO operations: {last_line(error)}") from error
    return core


def input_shapes(shape: str | Mapping[str, Sequence[int]] | None) -> dict[str, tuple[int, ...]]:
    """Shapes by input name, also from a text as ``--shape`` takes it. Raises OptionError for one of another form."""
    if isinstance(shape, str):
        return parse_shapes(shape)
    return {name: tuple(sizes) for name, sizes in (shape or {}).items()}


def parse_shapes(text: str, option: str = "--shape", least: int = 1) -> dict[str, tuple[int, ...]]:
    """Shapes from ``name[1,3,224,224],other[1,8]`` or, for a model with one input, ``1,3,224,224``.

    Raises OptionError that names ``option`` when the text has another form or a size below ``least``.
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
                raise OptionError(f"{option} {text!r} is not of the form NAME[1,3,224,224] or 1,3,224,224")
            sizes = match[2].split(",") if match[2] else []
            if (match[1] or "") in shapes:
                raise OptionError(f"{option} {text!r} gives input {match[1] or ''!r} two shapes")
            shapes[match[1] or ""] = tuple(int(size) for size in sizes)
            end = match.end()
    if not shapes or any(not least <= size < 2**31 for shape in shapes.values() for size in shape):
        raise OptionError(f"{option} {text!r}: every size must be at least {least} and below 2^31")
    return shapes


def _check_ir_files(path: Path) -> None:
    """Compare the .xml with its .bin before OpenVINO sees them: it accepts a .bin of another model."""
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
    found = weights.stat().st_size
    if found < needed or (found > needed > 0):
        raise ModelError(f"{weights} has {found} bytes, but {path.name} needs {needed}: they do not belong together")


def fix_shapes(model: ov.Model, shapes: Shapes, spare: Shapes | None = None, *, dynamic: bool = False) -> None:
    """Reshape the inputs that ``shapes`` names, in place; ``spare`` has shapes for those that are dynamic otherwise.

    With ``dynamic`` inputs may stay so. Raises ModelError for a shape of an input that is not there, shapes that do
    not fit, and dynamic inputs that remain.
    """
    names = ", ".join(input_name(port) for port in model.inputs)
    wanted: dict[Any, ov.PartialShape] = {}
    for name, shape in shapes.items():
        if name == "" and len(model.inputs) != 1:
            raise ModelError(f"the model has {len(model.inputs)} inputs ({names}): name them in --shape")
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
        option, value = likely_sizes(model.inputs) or ("", "")
        hint = f"fix them, such as {option} '{value}', or leave them and give typical shapes with --data-shape"
        if option == "--tokens":
            hint = f"say how many tokens are typical, such as {option} {value}"
        raise ModelError(f"the model has inputs of dynamic shapes ({listed}): {hint}")


def likely_sizes(ports: Sequence[Any]) -> tuple[str, str] | None:
    """The option that gives dynamic inputs sizes that they may have, and its value; None where all are fixed."""
    left = {input_name(port): example_shape(port) for port in ports if port.get_partial_shape().is_dynamic}
    if TOKEN_INPUTS[0] in left and set(left) <= set(TOKEN_INPUTS):
        return "--tokens", LIKELY_TOKENS
    return ("--shape", ",".join(left.values())) if left else None


def example_shape(port: Any) -> str:
    """An input with sizes that it may have, as ``--shape`` takes it: of open ones the first is 1, others are 64."""
    shape = port.get_partial_shape()
    if shape.rank.is_dynamic:
        return f"{input_name(port)}[1,{LIKELY_SIZE}]"
    sizes = []
    for axis, size in enumerate(shape):
        most = LIKELY_SIZE if size.get_max_length() < 0 else size.get_max_length()
        sizes.append(max(min(1 if axis == 0 else LIKELY_SIZE, most), size.get_min_length()))
    return f"{input_name(port)}[{','.join(map(str, sizes))}]"


def input_name(port: Any) -> str:
    """A name of a model's input or output: its first tensor name, else its op's name."""
    names = port.get_names()
    return min(names) if names else str(port.get_node().get_friendly_name())


def _input_called(model: ov.Model, name: str) -> Any:
    return next((p for p in model.inputs if name in {*p.get_names(), p.get_node().get_friendly_name()}), None)
