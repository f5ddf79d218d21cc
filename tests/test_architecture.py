"""The house: imports point one way, files stay short."""

from __future__ import annotations

import ast
import pydoc
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

import hsdag
from links import FOLDERS

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "hsdag"
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
OWN = sorted(path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] not in FOLDERS)
"""Files by their real paths: a link in hsdag/ may be missing, or lead to another checkout."""


def part_of(path: Path) -> str:
    """Return the folder at the top that a file lies in."""
    return path.relative_to(ROOT).parts[0]


def module_of(path: Path) -> str:
    """Return the name that a file is imported by."""
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    return name if part_of(path) == "hsdag" else f"hsdag.{name}"


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imported_modules(path: Path) -> frozenset[str]:
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return frozenset(found)


def test_files_of_every_folder_are_read() -> None:
    assert {part_of(path) for path in SOURCES} == set(FOLDERS)
    assert len(SOURCES) > 90
    assert len(OWN) > 90


def test_imports_point_one_way() -> None:
    for path in SOURCES:
        ours = {name.split(".")[1] for name in imported_modules(path) if name.startswith("hsdag.")}
        models = {"models"} if path.parent == ROOT / "runtime" / "torch" else set()
        assert ours <= {part_of(path), "base", "ir", *models}, path
        assert "hsdag" not in imported_modules(path), path


def test_files_stay_short() -> None:
    for path in (*SOURCES, *OWN):
        assert len(path.read_text().splitlines()) <= 700, path


FUNCTION_LINES, DOCUMENTATION_LINES = 60, 10
"""Most lines of a function, of which its signature and docstring count as this many at most."""

LONG = dict[str, int]()
"""Functions that are longer, and by the same count how long they may be."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def lines_of(function: Function) -> int:
    """The lines of a function from its name to its end, signature and docstring as at most DOCUMENTATION_LINES."""
    first, *others = function.body
    is_documented = ast.get_docstring(function, clean=False) is not None
    begin = first if not is_documented else others[0] if others else None
    end = function.end_lineno or 0
    statements = 0 if begin is None else end + 1 - begin.lineno
    return statements + min(end + 1 - function.lineno - statements, DOCUMENTATION_LINES)


def test_functions_stay_short() -> None:
    nodes = (node for path in (*SOURCES, *OWN) for node in ast.walk(tree_of(path)))
    lines = [(node.name, lines_of(node)) for node in nodes if isinstance(node, Function)]
    assert len(lines) > 2000
    check_limit(lines, FUNCTION_LINES, LONG)


def check_limit(sizes: Iterable[tuple[str, int]], limit: int, larger: Mapping[str, int]) -> None:
    """Assert that sizes keep to the limit, those of names in ``larger`` to their number; and that these need it."""
    largest: dict[str, int] = {}
    for name, size in sizes:
        largest[name] = max(size, largest.get(name, 0))
    over = {name: size for name, size in largest.items() if size > larger.get(name, limit)}
    assert not over, f"more than {limit}, or than before: {over}"
    kept = [name for name in larger if largest.get(name, 0) <= limit]
    assert not kept, f"within the limit of {limit} by now, so remove the entry: {kept}"


MEMBERS = 25
"""Most members of a class: its own fields, methods and attributes of ``self``.

Members of enums do not count, nor do fields of records (pydantic), which mirror a file or an answer, and of options,
each of which has its documentation.
"""

LARGE = {
    "ComputationGraph": 28, "CopiedModel": 26, "Incumbent": 26, "RecordingEvaluator": 26,
    "ScheduleProblem": 37, "Session": 27,
}  # fmt: skip
"""Classes that have more, and how many they may have."""


def members_of(node: ast.ClassDef, *, with_fields: bool) -> set[str]:
    """The names of a class's own members, with or without what its body assigns or declares."""
    found = {each.name for each in node.body if isinstance(each, Function)}
    if with_fields:
        fields = (each for each in node.body if isinstance(each, ast.Assign | ast.AnnAssign))
        names = (each for field in fields for each in ast.walk(field) if isinstance(each, ast.Name))
        found |= {each.id for each in names if isinstance(each.ctx, ast.Store)}
    own = (each for each in ast.walk(node) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store))
    return found | {each.attr for each in own if ast.unparse(each.value) == "self"}


def test_classes_stay_small() -> None:
    nodes = [node for path in (*SOURCES, *OWN) for node in ast.walk(tree_of(path)) if isinstance(node, ast.ClassDef)]
    assert len(nodes) > 500
    bases = nx.DiGraph(
        (node.name, ast.unparse(base).partition("[")[0].rpartition(".")[2]) for node in nodes for base in node.bases
    )
    records = {name for kind in ("Enum", "BaseModel") for name in nx.ancestors(bases, kind)}
    sizes = []
    for node in nodes:
        is_listed = node.name in records or node.name.endswith(("Options", "Config"))
        sizes.append((node.name, len(members_of(node, with_fields=not is_listed))))
    check_limit(sizes, MEMBERS, LARGE)


SAME_NAMES = {PACKAGE / "cli", PACKAGE / "api.py", PACKAGE / "optimum.py", PACKAGE / "exports" / "extension"}
"""Where functions have the names of what they call: commands, calls of the API; and a script that runs by itself."""


def test_no_two_classes_and_no_two_public_functions_have_one_name() -> None:
    places: dict[str, list[str]] = {}
    for path in (*SOURCES, *OWN):
        nodes = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.ClassDef)]
        names = {node.name.lstrip("_") for node in nodes}
        if not SAME_NAMES & {path, *path.parents}:
            names |= {node.name for node in tree_of(path).body if isinstance(node, ast.FunctionDef)}
        for name in names:
            places.setdefault(name, []).append(module_of(path))
    assert len(places) > 1000
    assert {name: found for name, found in places.items() if len(found) > 1 and not name.startswith("_")} == {}


_METHODS = {"base", "evaluators", "workers", "methods"}
_SEARCHES = {*_METHODS, "drawing", "search"}
LAYERS = {
    "base": {"base"},
    "evaluators": {"base", "evaluators"},
    "workers": {"base", "workers"},
    "drawing": {"base", "drawing"},
    "exports": {"base", "exports"},
    "methods": _METHODS,
    "search": _SEARCHES,
    "commands": {*_SEARCHES, "exports", "commands"},
}
"""What each folder of hsdag/ may import beside the libraries below it; of placers, learned ones alone see learning."""

COMMANDS = {
    "place": set[str](),
    "sources": set[str](),
    "bench": {"place"},
    "bisect": {"place"},
    "doctor": {"place"},
    "explain": {"place"},
    "inspect": {"place"},
    "profile": {"place"},
    "shard": {"place"},
    "compare": {"profile", "sources"},
    "report": {"place", "explain"},
    "train": {"sources"},
}
"""What each command, a file or a folder of commands/, may import of the others."""


def layer_of(name: str) -> str:
    """Return the folder of a module without the package's name; what scores plans is below the searches around it."""
    return "evaluators" if name.startswith("search.evaluators") else name.split(".")[0]


def own_imports(path: Path) -> set[str]:
    """The modules of hsdag/ that a file imports, without the package's name."""
    names = {name.removeprefix("hsdag.") for name in imported_modules(path) if name.startswith("hsdag.")}
    return {name for name in names if name.split(".")[0] not in FOLDERS}


def test_imports_inside_the_tool_point_one_way() -> None:
    for path in OWN:
        folder, *inner = path.relative_to(PACKAGE).parts[:-1] or (path.stem,)
        layer = layer_of(".".join([folder, *inner]))
        used = {layer_of(name) for name in own_imports(path)}
        assert used <= LAYERS.get(layer, used), path
        ours = {name for name in imported_modules(path) if name.split(".")[0] == "hsdag"}
        assert folder != "base" or all(name.startswith("hsdag.base.") for name in ours), path
        if folder == "methods":
            assert not any(name.split(".")[0] == "openvino" for name in imported_modules(path)), path
        if folder == "methods" and inner[:1] != ["learned"]:
            assert not any(name.startswith("methods.learned") for name in own_imports(path)), path


def test_commands_import_each_other_one_way() -> None:
    commands = [path for path in OWN if path.is_relative_to(PACKAGE / "commands") and path.name != "__init__.py"]
    assert {path.relative_to(PACKAGE / "commands").parts[0].removesuffix(".py") for path in commands} == set(COMMANDS)
    for path in commands:
        own = path.relative_to(PACKAGE / "commands").parts[0].removesuffix(".py")
        used = {name.split(".")[1] for name in own_imports(path) if name.startswith("commands.")}
        assert used <= {own, *COMMANDS[own]}, path
        assert own == "doctor" or not any(name.startswith("exports") for name in own_imports(path)), path


MODULES = {module_of(path): path for path in (*SOURCES, *OWN)}
"""Every module of the product by the name that it is imported by."""


def folder_of(module: str) -> str:
    """The package that a module lies in, or is."""
    return module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]


def folder_imports() -> dict[tuple[str, str], str]:
    """Each pair of folders of which the first imports the second, also for types alone, with a file that does."""
    found = {}
    for module, path in MODULES.items():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                for name in (name if name in MODULES else node.module for name in names):
                    if name in MODULES and folder_of(name) not in ("hsdag", folder_of(module)):
                        found[folder_of(module), folder_of(name)] = str(path.relative_to(ROOT))
    return found


def test_folders_form_no_cycle() -> None:
    edges = folder_imports()
    assert len(edges) > 50
    graph = nx.DiGraph(edges.keys())
    assert nx.is_directed_acyclic_graph(graph), nx.find_cycle(graph)


RUNTIME = {
    "objectives": set[str](),
    "machine": set[str](),
    "problem": {"objectives"},
    "platforms": {"problem"},
    "simulator": {"problem", "objectives", "machine"},
    "executor": {"machine"},
    "costs": {"executor", "simulator", "problem", "objectives"},
    "measuring": {"executor", "problem", "objectives", "machine"},
    "torch": {"executor", "measuring", "machine", "problem"},
}
"""What each folder of runtime/ may import beside timeline.py, which imports none of them."""


def test_imports_inside_runtime_point_one_way() -> None:
    for (folder, used), path in folder_imports().items():
        own, other = (name.partition("hsdag.runtime.")[2].partition(".")[0] for name in (folder, used))
        if folder.startswith("hsdag.runtime") and other not in ("", own):
            assert other in RUNTIME.get(own, ()), path


ON_LOADING, LATE, FOR_TYPES = "on loading", "inside a function", "for types"
"""When an import is done."""


def imports_below(node: ast.AST, when: str = ON_LOADING) -> Iterator[tuple[str, str]]:
    """Each module that is imported below a node, or that has what is imported, and when."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name, when) for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module:
            names = (f"{child.module}.{alias.name}" for alias in child.names)
            yield from ((name if name in MODULES else child.module, when) for name in names)
        elif isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            yield from imports_below(ast.Module(child.body, []), FOR_TYPES)
            yield from imports_below(ast.Module(child.orelse, []), when)
        else:
            yield from imports_below(child, LATE if isinstance(child, Function | ast.Lambda) else when)


@cache
def imports_of(module: str) -> frozenset[tuple[str, str]]:
    """Each module that a module imports, or that has what it imports, and when."""
    return frozenset(imports_below(tree_of(MODULES[module])))


def module_imports(*kinds: str) -> dict[tuple[str, str], str]:
    """Each pair of modules of which the first imports the second at these times, with one of them."""
    imports = ((module, *each) for module in MODULES for each in imports_of(module))
    return {
        (module, name): when for module, name, when in imports if when in kinds and name in MODULES and name != module
    }


def circle(edges: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The edges of a circle, if there is one."""
    graph = nx.DiGraph(list(edges))
    return [] if nx.is_directed_acyclic_graph(graph) else list(nx.find_cycle(graph))


def test_modules_import_each_other_in_no_circle_on_loading() -> None:
    edges = module_imports(ON_LOADING)
    assert len(edges) > 1000
    assert circle(edges) == []


CIRCLES = {
    ("hsdag.ir.placement.placement", "hsdag.ir.placement.applied"): "methods of a placement load OpenVINO when called",
}
"""Pairs of modules of which the first imports the second late or for types though that leads back to it, and why."""


def test_modules_import_each_other_in_no_circle_inside_functions_or_for_types() -> None:
    edges = module_imports(ON_LOADING, LATE, FOR_TYPES)
    assert {LATE, FOR_TYPES} <= set(edges.values())
    found = circle(edges.keys() - CIRCLES.keys())
    assert found == [], [(pair, edges[pair]) for pair in found]
    for pair in CIRCLES:
        assert circle((edges.keys() - CIRCLES.keys()) | {pair}), f"{pair} is in no circle any more: remove its entry"


@cache
def packages_of(module: str) -> set[str]:
    """All top-level packages, but for the standard library's, that are loaded with a module."""
    seen, todo, found = {module}, [module], set[str]()
    while todo:
        each = todo.pop()
        names = {name for name, when in imports_of(each) if when == ON_LOADING}
        parts = each.split(".")
        names |= {".".join(parts[:i]) for i in range(1, len(parts))}
        found |= LOADED_BY_NAME.get(each, set()) | {name.split(".")[0] for name in names - MODULES.keys()}
        todo += (names & MODULES.keys()) - seen
        seen |= names & MODULES.keys()
    return found - sys.stdlib_module_names


LOADED_BY_NAME = {"hsdag.base.kernels": {"numba"}}
"""What modules load without an import statement."""


def test_only_what_loads_another_library_or_is_private_is_imported_for_types_alone() -> None:
    for module in MODULES:
        for name, when in imports_of(module):
            if when != FOR_TYPES or module == "hsdag":  # which imports public names on their first use
                continue
            loaded = packages_of(name) if name in MODULES else {name.split(".")[0]}
            is_private = any(part.startswith("_") for part in name.split("."))
            assert is_private or loaded - packages_of(module), f"{module} can import {name} on loading"


LOADS = {
    "methods but for learned ones, the command line and the API load no torch, and names of methods no solver": """
from hsdag.methods import method_names; method_names()
from hsdag.methods.registry import find_method
loads_none_of("ortools")
[find_method(name) for name in ("auto", "heft", "mincut", "sa", "cpsat", "milp")]
import hsdag.cli.app, hsdag.api, hsdag.commands.place.place
loads_none_of("torch")
""",
    "simulating, placing and learning load no OpenVINO": """
import hsdag.runtime.simulator.values, hsdag.methods.learned.training
from hsdag.methods import method_names; from hsdag.methods.registry import find_method
[find_method(name) for name in method_names()]
loads_none_of("openvino")
""",
    "help loads no OpenVINO, compiler, solver or array library, and the measuring process only what measures": """
from hsdag.cli.app import run
run(["--help"])
loads_none_of("pydantic")  # which typer loads for a command's help
run(["place", "--help"]); run(["bench", "--help"])
loads_none_of("openvino", "numba", "torch", "ortools", "scipy", "numpy", "networkx", "rich")
import hsdag.runtime.measuring.worker
loads_none_of("numba", "scipy", "ortools", "torch")
""",
}
LOADS_NONE_OF = """
import sys
def loads_none_of(*packages):
    assert not set(packages) & set(sys.modules), set(packages) & set(sys.modules)
"""


@pytest.mark.parametrize("claim", [*list(LOADS)[::2], pytest.param(list(LOADS)[1], marks=pytest.mark.slow)])
def test_what_is_slow_to_load_is_loaded_where_it_is_needed(claim: str) -> None:
    command = [sys.executable, "-c", LOADS_NONE_OF + LOADS[claim]]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)


def test_the_clock_on_the_wall_is_read_for_dates_alone() -> None:
    readings = ("time.time(", "time.time_ns(", "datetime.now(", "datetime.utcnow(", "date.today(", "from time import")
    texts = {path: path.read_text() for path in (*SOURCES, *OWN)}
    reading = [path for path, text in texts.items() if any(each in text for each in readings)]
    assert [path.relative_to(ROOT).as_posix() for path in reading] == ["hsdag/commands/place/outcome.py"]


def test_the_public_names_are_these() -> None:
    assert hsdag.__all__ == [
        "BenchResult", "Comparison", "Explanation", "ExportResult", "HsdagError", "PlaceResult", "Placement",
        "ReportResult", "SimulateResult", "SolveResult", "__version__", "bench", "compare", "compile_model",
        "compile_work_conserving", "devices", "doctor", "explain", "export", "from_networkx", "inspect", "place",
        "profile", "report", "simulate", "solve",
    ]  # fmt: skip
    assert dir(hsdag) == [name for name in hsdag.__all__ if not name[0].isupper()]
    assert all(getattr(hsdag, name) is not None for name in hsdag.__all__)


def test_help_of_the_package_is_a_few_pages_with_all_functions() -> None:
    text = pydoc.plain(pydoc.render_doc(hsdag))
    assert len(text.splitlines()) < 400
    assert all(f"\n    {name}(" in text for name in dir(hsdag) if name not in ("__version__", "doctor"))
    assert all(name in str(hsdag.__doc__) for name in hsdag.__all__ if name[0].isupper())


def test_help_of_a_result_is_a_page_with_all_that_it_has_and_nothing_of_pydantic() -> None:
    for kind in (hsdag.PlaceResult, hsdag.Placement, hsdag.SolveResult, hsdag.SimulateResult, hsdag.BenchResult):
        text = pydoc.plain(pydoc.render_doc(kind))
        assert len(text.splitlines()) < 100, kind.__name__
        assert "model_dump" not in text
    text = pydoc.plain(pydoc.render_doc(hsdag.PlaceResult))
    for name in ("affinity", "answer", "apply(", "compile(", "devices", "run", "save(", "setting", "table(", "versus"):
        assert f"\n |  {name}" in text


def decorators(node: ast.AST) -> set[str]:
    found = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    return {ast.unparse(each).partition("(")[0] for each in found}


def without_wrapper(path: Path) -> set[str]:
    """Functions of a module that only compiled functions may call."""
    body = tree_of(path).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef) and decorators(node) & INNER}


def interpreted_calls(node: ast.AST) -> Iterator[str]:
    """Names that are called outside compiled functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Name):
            yield child.func.id
        if not decorators(child) & COMPILED:
            yield from interpreted_calls(child)


INNER = {"inner", "inlined"}
COMPILED = {*INNER, "bare", "merged", "kernel", "numba.njit"}


def test_the_interpreter_calls_no_compiled_function_without_a_wrapper() -> None:
    """It would jump to address 0."""
    kernels = [path for path in [*SOURCES, *OWN] if "base.kernels import" in path.read_text()]
    inner = {path: without_wrapper(path) for path in kernels}
    modules = {path.stem: names for path, names in inner.items() if names}
    assert modules
    for path in [*SOURCES, *OWN, *sorted(ROOT.glob("tests/**/*.py")), *sorted(ROOT.glob("benchmarks/*.py"))]:
        text = path.read_text()
        if path not in kernels and not any(f".{stem} import" in text for stem in modules):
            continue
        tree, known = tree_of(path), set(inner.get(path, ()))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                known |= {alias.name for alias in node.names} & modules.get(node.module.split(".")[-1], set())
        assert known & set(interpreted_calls(tree)) == set(), path
