"""Which of the two dialects a server speaks, told by three harmless questions.

Asked by behaviour, not by version: Valkey answers Redis 7.2.4 whatever it can do, and managed
servers may forbid COMMAND and INFO.
"""

from __future__ import annotations

from typing import Any

from airflow_provider_chasqui.core.errors import NotPermitted, ServerTooOld
from airflow_provider_chasqui.core.op import Arg

NATIVE = "native"
PORTABLE = "portable"


def questions(tag: str) -> list[tuple[Arg, ...]]:
    """Return commands that change nothing: the key does not exist and is not made."""
    key = f"{tag}:probe"
    return [
        ("XACKDEL", key, "g", "IDS", 1, "0-1"),
        ("XADD", key, "NOMKSTREAM", "IDMP", "p", "i", "*", "d", "x"),
        ("XREADGROUP", "GROUP", "g", "c", "CLAIM", 0, "STREAMS", key, ">"),
        ("EVAL", "#!lua\nreturn 1", 0),
    ]


def judge(answers: list[Any], where: str) -> str:
    """Return the dialect that the answers show, or raise for a server older than Redis 7."""
    acked, added, read, scripted = answers
    for answer in answers:
        if (
            isinstance(answer, Exception)
            and "NOPERM" in f"{type(answer).__name__} {answer}".upper()
        ):
            raise NotPermitted(
                f"{where} does not let this user run the commands of a queue: {answer}"
            )
    if scripted != 1:
        raise ServerTooOld(f"{where} is older than Redis 7.0; use Redis 7.0 or newer, or Valkey 8")
    native = (
        isinstance(acked, list)
        and added is None
        and isinstance(read, Exception)
        and "NOGROUP" in str(read)
    )
    return NATIVE if native else PORTABLE
