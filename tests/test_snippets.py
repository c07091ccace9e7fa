"""Every block of code in the README and in docs/ is run, or at least read by what would run it.

A block of Python is *whole* if it has no ellipsis and every name in it comes from somewhere: from
itself, from a whole block above it on the page, or from Python. Whole blocks are run, with
redis://localhost standing for a server of the test; one that is not whole, or never ends, must say
which other test runs it. Commands are read by the parser of the program that they call.
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
LOCAL = re.compile(r"redis://localhost(:6379)?(/0)?")

# Programs that are not ours: lines that call them are left to the reader.
FOREIGN = {
    "cd", "curl", "docker", "export", "generate", "git", "kubectl", "redis-cli", "source",
    "systemctl",
}  # fmt: skip
# What runs until it is stopped, needs replicas or Spark, or a name that the reader has: the page,
# a part of the block, and the test that runs it.
ELSEWHERE = {
    ("docs/workers.md", "consumer.run"): "tests/engine/test_docs.py",
    ("docs/metrics.md", "consumer.run"): "tests/engine/test_docs.py",
    ("docs/guarantees.md", "payments.charge"): "tests/engine/test_docs.py",
    ("docs/guarantees.md", "Confirm(replicas"): "tests/redis_client/test_write_concern.py",
    ("docs/leases.md", "LeaseQueue("): "tests/rsmq/test_docs.py",
    ("docs/leases.md", "PartitionedQueue("): "tests/rsmq/test_docs.py",
    ("docs/spark.md", "df.write"): "tests/spark/test_docs.py",
    ("docs/spark.md", "spark."): "tests/spark/test_docs.py",
    ("docs/spark.md", "letters.where"): "tests/spark/test_docs.py",
    ("docs/airflow/index.md", "@task.pyspark"): "tests/spark/test_docs.py",
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
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        indent = len(found[1])
        code = "".join(row[indent:] for row in found[3].splitlines(keepends=True))
        yield Block(str(page.relative_to(ROOT)), line, found[2], code)


BLOCKS = [block for page in PAGES for block in blocks(page)]
PYTHON_PAGES = sorted({block.page for block in BLOCKS if block.language == "python"})
COMMANDS = [block for block in BLOCKS if block.language in ("bash", "console", "sh")]
DATA = [block for block in BLOCKS if block.language in ("yaml", "toml", "json", "ini")]


def test_every_block_says_what_it_is() -> None:
    known = {"python", "bash", "console", "sh", "yaml", "toml", "json", "ini", "text"}
    assert [str(block) for block in BLOCKS if block.language not in known] == []


def test_there_are_blocks_of_every_kind() -> None:
    """A pattern that finds nothing would let everything pass."""
    assert len(PYTHON_PAGES) > 10
    assert len(COMMANDS) > 10
    assert len(DATA) > 3


# ---- Python


def tree_of(block: Block) -> ast.Module:
    return ast.parse(block.text, str(block))


def is_whole(tree: ast.Module, known: set[str]) -> bool:
    """Whether everything that the block uses is there."""
    made, used = set(dir(builtins)) | known | {"__name__"}, set()
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=value) if value is ... or (
                isinstance(value, str) and "…" in value
            ):
                return False
            case ast.Name(id=name, ctx=ast.Load()):
                used.add(name)
            case ast.Name(id=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                made.add(name)
            case ast.ClassDef(name=name) | ast.arg(arg=name):
                made.add(name)
            case ast.alias():
                made.add((node.asname or node.name).partition(".")[0])
            case ast.ExceptHandler(name=str(name)):
                made.add(name)
    return used <= made


def import_ours(tree: ast.Module) -> None:
    """Carry out the imports from this package; one that is stale raises."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("airflow_provider"):
            module = importlib.import_module(node.module or "")
            for name in node.names:
                assert hasattr(module, name.name), f"{node.module} has no {name.name}"


def run(block: Block, space: dict[str, Any], url: str) -> None:
    source = LOCAL.sub(url, block.text)
    code = compile(source, str(block), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if code.co_flags & inspect.CO_COROUTINE:
        asyncio.run(types.FunctionType(code, space)())
    else:
        exec(code, space)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server of their own: the pages name their queues themselves."""
    with RedisServer.start(valkey_binary()) as server:
        yield server.url


@pytest.mark.parametrize("page", PYTHON_PAGES)
def test_the_python_of_a_page_runs(page: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk import DAG

    host, _, port = url.removeprefix("redis://").removesuffix("/0").partition(":")
    monkeypatch.setenv("AIRFLOW_CONN_CHASQUI_DEFAULT", f"chasqui://{host}:{port}/0")
    monkeypatch.setenv("CHASQUI_URL", url)
    space: dict[str, Any] = {"__name__": "snippet"}
    for block in BLOCKS:
        if block.page != page or block.language != "python":
            continue
        tree = tree_of(block)
        import_ours(tree)
        if elsewhere(block):
            continue
        assert is_whole(tree, set(space)), f"{block}: who runs this? It is not whole"
        with DAG(f"snippet_{block.line}"):
            run(block, space, url)
    for each in space.values():
        if isinstance(each, Queue | LeaseQueue | RsmqClient):
            each.close()


def elsewhere(block: Block) -> bool:
    return any(block.page == page and part in block.text for page, part in ELSEWHERE)


@pytest.mark.parametrize(("page", "part"), ELSEWHERE)
def test_what_is_run_elsewhere_is_there_and_that_test_names_its_page(page: str, part: str) -> None:
    code = [block.text for block in BLOCKS if block.page == page and block.language == "python"]
    assert any(part in text for text in code)
    assert page.rpartition("/")[2] in (ROOT / ELSEWHERE[page, part]).read_text("utf-8")


# ---- Commands


@cache
def chasqui() -> Any:
    from typer.main import get_command

    from airflow_provider_chasqui.cli.app import app

    return get_command(app)


def parse(command: Any, words: list[str]) -> None:
    """Let the command read its words, down to the last of its sub-commands, and run nothing."""
    context = command.make_context(command.name or "chasqui", list(words))
    if hasattr(command, "resolve_command"):
        _, inner, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        parse(inner, rest)


def lines(block: Block) -> Iterator[list[str]]:
    for line in block.text.replace("\\\n", " ").splitlines():
        for part in line.removeprefix("$ ").split(" | "):
            words = shlex.split(part, comments=True)
            while words and re.match(r"[A-Z_]+=", words[0]):
                words.pop(0)
            if words:
                yield words


@pytest.mark.parametrize("block", COMMANDS, ids=str)
def test_the_commands_can_be_read(block: Block) -> None:
    makefile = (ROOT / "Makefile").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for program, *words in lines(block):
        match program.rpartition("/")[2]:
            case "chasqui":
                parse(chasqui(), words)
            case "airflow":
                assert words[0] in ("chasqui", "connections", "dags"), words
            case "make":
                for target in (word for word in words if "=" not in word):
                    assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
            case "pip":
                wished = re.findall(r"airflow-provider-chasqui\[(.*?)\]", " ".join(words))
                assert set(",".join(wished).split(",")) - {""} <= set(extras)
            case "pytest":
                assert all((ROOT / word).exists() for word in words if "/" in word), words
            case "python" | "python3":
                assert words[0] == "-m", words
            case other:
                assert other in FOREIGN, f"{block}: what is {other}?"


INLINE = [
    (str(page.relative_to(ROOT)), command)
    for page in (*PAGES, *sorted((ROOT / "example_dags").glob("*.py")))
    for command in re.findall(
        r"`(chasqui [a-z-]+ [^`\n]+)`", FENCE.sub("", page.read_text("utf-8"))
    )
    if "…" not in command
]


@pytest.mark.parametrize(("page", "command"), INLINE)
def test_a_command_in_the_middle_of_a_sentence_can_be_read(page: str, command: str) -> None:
    parse(chasqui(), shlex.split(command)[1:])


# ---- Data


@pytest.mark.parametrize("block", DATA, ids=str)
def test_the_data_can_be_read(block: Block) -> None:
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
