"""Nothing that comes from Redis, a request or a file of jobs can become code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "airflow_provider_chasqui"
FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "jsonpickle"}
CALLS = {"eval", "exec", "compile", "__import__"}
# The supervisor tells its own child, over a socket pair that nobody else has, what to do.
PRIVATE = {"supervisor/worker_process.py": {"pickle"}, "supervisor/child_main.py": {"pickle"}}
# Code is loaded by name in these places only, and each says where the name comes from.
LOADERS = {
    "__init__.py",  # the package's own names
    "supervisor/handler_loader.py",  # the command line of whoever starts the worker
    "operators/consume.py",  # the DAG file; the field is not a template
    "hooks/_stats.py",  # one of two names that stand there
}


def found(tree: ast.AST) -> Iterator[str]:
    """The names of what could turn data into code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield (node.module or "").partition(".")[0]
        elif isinstance(node, ast.Call):
            yield from _called(node)


def _called(node: ast.Call) -> Iterator[str]:
    match node.func:
        case ast.Name(id=name):
            yield f"{name}()"
        case ast.Attribute(value=ast.Name(id=module), attr=name):
            yield f"{module}.{name}()"
    if any(word.arg == "shell" for word in node.keywords):
        yield "shell="


def dangers(source: str) -> set[str]:
    seen = set(found(ast.parse(source)))
    calls = {f"{name}()" for name in CALLS} | {"yaml.load()", "yaml.unsafe_load()", "os.system()"}
    return (seen & MODULES) | (seen & calls) | (seen & {"shell="})


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_no_module_can_run_data(file: Path) -> None:
    name = file.relative_to(PACKAGE).as_posix()
    assert dangers(file.read_text()) == PRIVATE.get(name, set())


@pytest.mark.parametrize(
    "source",
    [
        "import pickle", "from pickle import loads", "import marshal", "eval('1')", "exec('1')",
        "import yaml\nyaml.load(x)", "__import__('os')", "import os\nos.system('ls')",
        "import subprocess as s\ns.run('ls', shell=True)", "def f():\n    import dill",
    ],
)  # fmt: skip
def test_the_search_finds_what_it_looks_for(source: str) -> None:
    assert dangers(source)


def test_code_is_imported_by_name_in_known_places_only() -> None:
    using = {
        file.relative_to(PACKAGE).as_posix()
        for file in FILES
        if {"import_module()", "importlib.import_module()"}
        & set(found(ast.parse(file.read_text())))
    }
    assert using <= LOADERS, "say where the name comes from, and that no job can choose it"


def test_the_handler_of_an_operator_cannot_come_from_a_message() -> None:
    from airflow_provider_chasqui.operators.consume import ChasquiConsumeOperator

    assert "handler" not in ChasquiConsumeOperator.template_fields
