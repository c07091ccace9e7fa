"""Data from Redis, from requests and from job files is never executed as code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "airflow_provider_chasqui"
FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "jsonpickle"}
CALLS = {"eval", "exec", "compile", "__import__"}
# The supervisor and its child processes communicate over a private socket pair.
ALLOWED = {"supervisor/worker_process.py": {"pickle"}, "supervisor/child_main.py": {"pickle"}}
# The only modules that import code by name, with the source of the name.
LOADERS = {
    "__init__.py",  # the names that the package exports
    "engine/handler_loader.py",  # the command line of the worker and the arguments of an operator
    "jobs.py",  # constants: modules of the Airflow packages, which it does not depend on
    "hooks/_stats.py",  # one of two constants
    "operators/_sources.py",  # the database driver of an open connection
}


def names_used(tree: ast.AST) -> Iterator[str]:
    """Return the imported modules, the called functions and the use of `shell=`."""
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


def dangerous_names(source: str) -> set[str]:
    """Return the names in a module that could execute data."""
    used = set(names_used(ast.parse(source)))
    calls = {f"{name}()" for name in CALLS} | {"yaml.load()", "yaml.unsafe_load()", "os.system()"}
    return used & (MODULES | calls | {"shell="})


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_no_module_can_execute_data(file: Path) -> None:
    name = file.relative_to(PACKAGE).as_posix()
    assert dangerous_names(file.read_text()) == ALLOWED.get(name, set())


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import marshal",
        "eval('1')",
        "exec('1')",
        "import yaml\nyaml.load(x)",
        "__import__('os')",
        "import os\nos.system('ls')",
        "import subprocess as s\ns.run('ls', shell=True)",
        "def f():\n    import dill",
    ],
)
def test_the_search_finds_every_dangerous_construct(source: str) -> None:
    assert dangerous_names(source)


def test_code_is_imported_by_name_only_in_known_modules() -> None:
    importers = {
        file.relative_to(PACKAGE).as_posix()
        for file in FILES
        if {"import_module()", "importlib.import_module()"}
        & set(names_used(ast.parse(file.read_text())))
    }
    assert importers <= LOADERS, "add the module with the source of the name; no job may choose it"


def test_the_handler_of_the_consume_operator_is_not_a_template() -> None:
    from airflow_provider_chasqui.operators.consume import ChasquiConsumeOperator

    assert "handler" not in ChasquiConsumeOperator.template_fields
