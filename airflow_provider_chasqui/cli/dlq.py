"""dlq peek, replay, purge: dead letters."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any

import typer

from airflow_provider_chasqui.cli import show
from airflow_provider_chasqui.cli.jobs import read_payload
from airflow_provider_chasqui.cli.server import AsJson, Limit, QueueName, Server, connected
from airflow_provider_chasqui.cli.show import Column, cut
from airflow_provider_chasqui.cli.spans import short, span
from airflow_provider_chasqui.core.job import Letter
from airflow_provider_chasqui.core.ops.letters import LetterReport, buried_at_ms
from airflow_provider_chasqui.core.plan import LetterFilter
from airflow_provider_chasqui.queue import wall_clock

_PANEL = "Which letters"

Ids = Annotated[
    list[str] | None,
    typer.Option("--id", metavar="ID", rich_help_panel=_PANEL, help="Letters with these ids."),
]
JobIds = Annotated[
    list[str] | None,
    typer.Option("--job", metavar="ID", rich_help_panel=_PANEL, help="Of these jobs."),
]
Reason = Annotated[str | None, typer.Option(rich_help_panel=_PANEL, help="As retries_exhausted.")]
Name = Annotated[str | None, typer.Option(rich_help_panel=_PANEL, help="Of jobs of this name.")]
Older = Annotated[
    timedelta | None,
    typer.Option(parser=span, metavar="SPAN", rich_help_panel=_PANEL, help="Died longer ago."),
]
Newer = Annotated[
    timedelta | None,
    typer.Option(parser=span, metavar="SPAN", rich_help_panel=_PANEL, help="Died since then."),
]
Words = Annotated[str | None, typer.Option("--text", rich_help_panel=_PANEL, help="In the error.")]
OfBatch = Annotated[str | None, typer.Option("--batch", rich_help_panel=_PANEL, help="Of a batch.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would happen.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
All = Annotated[bool, typer.Option("--all", help="No limit.")]


def _filters(**given: Any) -> LetterFilter:
    chosen: Any = {name: value for name, value in given.items() if value}
    return chosen  # type: ignore[no-any-return]


@connected
def peek(
    queue: QueueName,
    server: Server,
    limit: Limit = 20,
    after: Annotated[
        str | None, typer.Option(metavar="ID", help="Go on behind this letter.")
    ] = None,
    newest: Annotated[bool, typer.Option("--newest", help="Newest first.")] = False,
    id: Ids = None,
    job: JobIds = None,
    reason: Reason = None,
    name: Name = None,
    older_than: Older = None,
    newer_than: Newer = None,
    text: Words = None,
    batch: OfBatch = None,
    json: AsJson = False,
) -> None:
    """Show dead letters, a page at a time, and count their reasons."""
    chosen = _filters(
        ids=id, job_ids=job, reason=reason, name=name, older_than=older_than,
        newer_than=newer_than, text=text, batch=batch,
    )  # fmt: skip
    with server.queue(queue) as opened:
        found = opened.letters(limit=limit, after=after, newest_first=newest, **chosen)
    reasons = Counter(each.reason for each in found)
    more = found[-1].id if len(found) == limit else None
    if json:
        letters = [facts(each) for each in found]
        show.as_json({"queue": queue, "letters": letters, "reasons": dict(reasons), "next": more})
        return
    if not found:
        show.say("no letters")
        return
    columns = [
        Column("dlq id"), Column("source_id", extra=True), Column("name"),
        Column("reason"), Column("runs", right=True, extra=True), Column("died", right=True),
        Column("detail", flex=True), Column("payload bytes", right=True, extra=True),
    ]  # fmt: skip
    show.table(columns, [_row(each) for each in found])
    show.say("")
    counts = [(reason, count) for reason, count in reasons.most_common()]
    show.table([Column("reason"), Column("count", right=True)], counts)
    if more is not None:
        show.say(f"more: --after {more}", style="dim")


def _row(each: Letter) -> tuple[object, ...]:
    return (
        each.id,
        each.source_id,
        each.name or "-",
        each.reason,
        "-" if each.attempts is None else each.attempts,
        f"{short(max(0, wall_clock() - buried_at_ms(each)))} ago",
        cut(each.error or each.detail or "-", 60),
        len(each.raw),
    )


def facts(each: Letter) -> dict[str, Any]:
    payload, problem = read_payload(each.job)
    return {
        "dlq_id": each.id,
        "source_id": each.source_id,
        "job_id": each.job_id,
        "name": each.name,
        "reason": each.reason,
        "detail": each.detail,
        "error": each.error,
        "attempts": each.attempts,
        "failed_at_ms": each.failed_at_ms,
        "payload_bytes": len(each.raw),
        "payload": payload,
        **({"payload_error": problem} if problem else {}),
    }


@connected
def replay(
    queue: QueueName,
    server: Server,
    limit: Limit = 100,
    all: All = False,
    budget: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Leave jobs that were replayed so often.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    id: Ids = None,
    job: JobIds = None,
    reason: Reason = None,
    name: Name = None,
    older_than: Older = None,
    newer_than: Newer = None,
    text: Words = None,
    batch: OfBatch = None,
    json: AsJson = False,
) -> None:
    """Put dead jobs back on the queue, with a fresh budget of attempts. Asks first."""
    chosen = _filters(
        ids=id, job_ids=job, reason=reason, name=name, older_than=older_than,
        newer_than=newer_than, text=text, batch=batch,
    )  # fmt: skip
    most = None if all else limit
    with server.queue(queue) as opened:
        _carefully(
            "replay", queue, most, dry_run, yes, json,
            lambda dry: opened.replay(limit=most, budget=budget, dry_run=dry, **chosen),
        )  # fmt: skip


@connected
def purge(
    queue: QueueName,
    server: Server,
    limit: Limit = 100,
    all: All = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    id: Ids = None,
    job: JobIds = None,
    reason: Reason = None,
    name: Name = None,
    older_than: Older = None,
    newer_than: Newer = None,
    text: Words = None,
    batch: OfBatch = None,
    json: AsJson = False,
) -> None:
    """Delete dead letters for good. Asks first."""
    chosen = _filters(
        ids=id, job_ids=job, reason=reason, name=name, older_than=older_than,
        newer_than=newer_than, text=text, batch=batch,
    )  # fmt: skip
    most = None if all else limit
    with server.queue(queue) as opened:
        _carefully(
            "purge", queue, most, dry_run, yes, json,
            lambda dry: opened.purge(limit=most, dry_run=dry, **chosen),
        )  # fmt: skip


def _carefully(
    verb: str, queue: str, most: int | None, dry_run: bool, yes: bool, json: bool,
    act: Callable[[bool], LetterReport],
) -> None:  # fmt: skip
    """Say what would happen, ask, and do it."""
    if dry_run:
        report = act(True)
    else:
        if not yes:
            _ask(verb, queue, act(True))
        report = act(False)
    if json:
        show.as_json({"queue": queue, "verb": verb, **asdict(report)})
        return
    did = f"would {verb}" if dry_run else {"replay": "replayed", "purge": "purged"}[verb]
    show.say(f"{did} {report.moved} of {report.matched if most is None else most} entries")
    show.also(
        (report.over_budget, "were replayed too often"),
        (report.unreadable, "cannot be read and stay where they are"),
        (report.gone, "were gone already"),
    )


def _ask(verb: str, queue: str, would: LetterReport) -> None:
    count = would.moved
    things = "letter" if count == 1 else "letters"
    end = " for good" if verb == "purge" else ""
    sys.stderr.write(show.clean(f"{verb} {count} {things} of queue {queue!r}{end}? [y/N] "))
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        show.say("nothing was done", err=True)
        raise typer.Exit(1)
