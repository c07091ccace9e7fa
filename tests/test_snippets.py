"""Every code block in README, CONTRIBUTING and docs/ is executed, or at least parsed.

A Python block is *complete* if it has no ellipsis and every name in it is defined: in the block
itself, in a complete block above it on the page, or in Python. Complete blocks are executed;
redis://localhost is replaced by the URL of a test server. A block that is not complete, or never
ends, must be listed in `RUN_ELSEWHERE` with the test that executes it. Commands are parsed by the
parser of the program that they call.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import configparser
import importlib
import inspect
import json
import re
import shlex
import tomllib
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_chasqui.lease import LeaseQueue
from airflow_provider_chasqui.queue import Queue
from airflow_provider_chasqui.rsmq.client import RsmqClient
from tests.support.servers import RedisServer, valkey_binary

pytestmark = [pytest.mark.xdist_group("snippets"), pytest.mark.timeout(120)]
ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
LOCAL_URL = re.compile(r"redis://localhost(:6379)?(/0)?")
LANGUAGES = {"python", "bash", "console", "sh", "yaml", "toml", "json", "ini", "text"}

# Programs of other projects; their arguments are not checked.
FOREIGN_PROGRAMS = {
    *("cd", "cp", "curl", "docker", "export", "generate", "gh", "git", "helm", "kubectl"),
    *("redis-cli", "source", "systemctl"),
}
# Blocks that run until they are stopped, need replicas or Spark, or use names of the reader:
# the page, a part of the block, and the test that executes the block.
RUN_ELSEWHERE = {
    ("docs/workers.md", "consumer.run"): "tests/engine/test_docs.py",
    ("docs/metrics.md", "consumer.run"): "tests/engine/test_docs.py",
    ("docs/guarantees.md", "payments.charge"): "tests/engine/test_docs.py",
    ("docs/guarantees.md", "WriteConcern(replicas"): "tests/redis_client/test_write_concern.py",
    ("docs/leases.md", "LeaseQueue("): "tests/rsmq/test_docs.py",
    ("docs/leases.md", "PartitionedQueue("): "tests/rsmq/test_docs.py",
    ("docs/spark.md", "df.write"): "tests/spark/test_docs.py",
    ("docs/spark.md", "spark."): "tests/spark/test_docs.py",
    ("docs/spark.md", "dead_letters.where"): "tests/spark/test_docs.py",
    ("docs/airflow/index.md", "@task.pyspark"): "tests/spark/test_docs.py",
    ("docs/airflow/testing.md", "def test_newsletter"): "tests/provider/test_docs.py",
}


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text("utf-8")
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        indent = len(match[1])
        code = "".join(row[indent:] for row in match[3].splitlines(keepends=True))
        yield Block(str(page.relative_to(ROOT)), line, match[2], code)


BLOCKS = [block for page in PAGES for block in blocks(page)]
PYTHON_PAGES = sorted({block.page for block in BLOCKS if block.language == "python"})
COMMANDS = [block for block in BLOCKS if block.language in ("bash", "console", "sh")]
DATA = [block for block in BLOCKS if block.language in ("yaml", "toml", "json", "ini")]


def test_every_block_names_its_language() -> None:
    assert [str(block) for block in BLOCKS if block.language not in LANGUAGES] == []


def test_blocks_of_every_kind_are_found() -> None:
    """A pattern that matches nothing would let all other tests pass."""
    assert len(PYTHON_PAGES) > 10
    assert len(COMMANDS) > 10
    assert len(DATA) > 3


# ---- Python


def parse_python(block: Block) -> ast.Module:
    return ast.parse(block.text, str(block))


def is_complete(tree: ast.Module, known_names: set[str]) -> bool:
    """Return whether every name that the block uses is defined."""
    defined, used = set(dir(builtins)) | known_names | {"__name__"}, set()
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=value) if value is ... or (
                isinstance(value, str) and "…" in value
            ):
                return False
            case ast.Name(id=name, ctx=ast.Load()):
                used.add(name)
            case ast.Name(id=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                defined.add(name)
            case ast.ClassDef(name=name) | ast.arg(arg=name):
                defined.add(name)
            case ast.alias():
                defined.add((node.asname or node.name).partition(".")[0])
            case ast.ExceptHandler(name=str(name)):
                defined.add(name)
    return used <= defined


def check_imports(tree: ast.Module) -> None:
    """Raise if the block imports a name from this package that does not exist."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("airflow_provider"):
            module = importlib.import_module(node.module or "")
            for name in node.names:
                assert hasattr(module, name.name), f"{node.module} has no {name.name}"


def execute(block: Block, namespace: dict[str, Any], url: str) -> None:
    source = LOCAL_URL.sub(url, block.text)
    code = compile(source, str(block), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
    if code.co_flags & inspect.CO_COROUTINE:
        asyncio.run(types.FunctionType(code, namespace)())
    else:
        exec(code, namespace)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The URL of a server for these tests only, because the pages choose the queue names."""
    with RedisServer.start(valkey_binary()) as server:
        yield server.url


@pytest.mark.parametrize("page", PYTHON_PAGES)
def test_the_python_blocks_of_a_page_run(
    page: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk import DAG

    host, _, port = url.removeprefix("redis://").removesuffix("/0").partition(":")
    monkeypatch.setenv("AIRFLOW_CONN_CHASQUI_DEFAULT", f"chasqui://{host}:{port}/0")
    monkeypatch.setenv("CHASQUI_URL", url)
    namespace: dict[str, Any] = {"__name__": "snippet"}
    for block in BLOCKS:
        if block.page != page or block.language != "python":
            continue
        tree = parse_python(block)
        check_imports(tree)
        if runs_elsewhere(block):
            continue
        assert is_complete(tree, set(namespace)), (
            f"{block} is not complete: define its names, or list it in RUN_ELSEWHERE"
        )
        with DAG(f"snippet_{block.line}"):
            execute(block, namespace, url)
    for value in namespace.values():
        if isinstance(value, Queue | LeaseQueue | RsmqClient):
            value.close()


def runs_elsewhere(block: Block) -> bool:
    return any(block.page == page and part in block.text for page, part in RUN_ELSEWHERE)


@pytest.mark.parametrize(("page", "part"), RUN_ELSEWHERE)
def test_blocks_that_run_elsewhere_exist_and_their_test_names_the_page(
    page: str, part: str
) -> None:
    code = [block.text for block in BLOCKS if block.page == page and block.language == "python"]
    assert any(part in text for text in code)
    test_file = ROOT / RUN_ELSEWHERE[page, part]
    assert page.rpartition("/")[2] in test_file.read_text("utf-8")


# ---- Commands


@cache
def chasqui() -> Any:
    from typer.main import get_command

    from airflow_provider_chasqui.cli.app import app

    return get_command(app)


def parse(command: Any, words: list[str]) -> None:
    """Parse the words with the command and its sub-commands, without running anything."""
    context = command.make_context(command.name or "chasqui", list(words))
    if hasattr(command, "resolve_command"):
        arguments = [*context._protected_args, *context.args]
        _, subcommand, remaining = command.resolve_command(context, arguments)
        parse(subcommand, remaining)


def command_lines(block: Block) -> Iterator[list[str]]:
    for line in block.text.replace("\\\n", " ").splitlines():
        for part in line.removeprefix("$ ").split(" | "):
            words = shlex.split(part, comments=True)
            while words and re.match(r"[A-Z_]+=", words[0]):
                words.pop(0)
            if words:
                yield words


@pytest.mark.parametrize("block", COMMANDS, ids=str)
def test_the_commands_of_a_block_are_valid(block: Block) -> None:
    makefile = (ROOT / "Makefile").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for program, *words in command_lines(block):
        match program.rpartition("/")[2]:
            case "chasqui":
                parse(chasqui(), words)
            case "airflow":
                assert words[0] in ("chasqui", "connections", "dags"), words
            case "make":
                for target in (word for word in words if "=" not in word):
                    assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
            case "pip":
                extras = re.findall(r"airflow-provider-chasqui\[(.*?)\]", " ".join(words))
                unknown = set(",".join(extras).split(",")) - set(project["optional-dependencies"])
                assert unknown <= {""}
            case "pytest":
                assert all((ROOT / word).exists() for word in words if "/" in word), words
            case "python" | "python3":
                assert words[0] == "-m", words
            case other:
                assert other in FOREIGN_PROGRAMS, f"{block}: unknown program {other}"


INLINE_COMMANDS = [
    (str(page.relative_to(ROOT)), command)
    for page in (*PAGES, *sorted((ROOT / "example_dags").glob("*.py")))
    for command in re.findall(
        r"`(chasqui [a-z-]+ [^`\n]+)`", FENCE.sub("", page.read_text("utf-8"))
    )
    if "…" not in command
]


@pytest.mark.parametrize(("page", "command"), INLINE_COMMANDS)
def test_a_command_within_a_sentence_is_valid(page: str, command: str) -> None:
    parse(chasqui(), shlex.split(command)[1:])


# ---- Data


@pytest.mark.parametrize("block", DATA, ids=str)
def test_the_data_of_a_block_is_valid(block: Block) -> None:
    match block.language:
        case "yaml":
            assert all(list(yaml.safe_load_all(block.text)))
        case "toml":
            assert tomllib.loads(block.text)
        case "json":
            json.loads(block.text)
        case "ini":
            parser = configparser.ConfigParser(strict=False, interpolation=None)
            parser.read_string(block.text)
            assert parser.sections()
