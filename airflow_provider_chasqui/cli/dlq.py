"""dlq peek, replay, purge: dead letters."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any

import typer

from airflow_provider_chasqui.cli import output
from airflow_provider_chasqui.cli.jobs import read_payload
from airflow_provider_chasqui.cli.output import Column, truncate
from airflow_provider_chasqui.cli.parsing import parse_duration
from airflow_provider_chasqui.cli.server import (
    JsonOption,
    LimitOption,
    QueueNameArgument,
    Server,
    with_connection_options,
)
from airflow_provider_chasqui.clock import current_time_ms
from airflow_provider_chasqui.core.commands.dead_letters import (
    DeadLetterReport,
    dead_lettered_at_ms,
)
from airflow_provider_chasqui.core.durations import format_duration
from airflow_provider_chasqui.core.job import DeadLetter
from airflow_provider_chasqui.core.queue_flows import DeadLetterQuery

_FILTER_PANEL = "Which letters"

DlqIdsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--id", metavar="ID", rich_help_panel=_FILTER_PANEL, help="Letters with these ids."
    ),
]
JobIdsOption = Annotated[
    list[str] | None,
    typer.Option("--job", metavar="ID", rich_help_panel=_FILTER_PANEL, help="Of these jobs."),
]
ReasonOption = Annotated[
    str | None, typer.Option(rich_help_panel=_FILTER_PANEL, help="As retries_exhausted.")
]
JobNameOption = Annotated[
    str | None, typer.Option(rich_help_panel=_FILTER_PANEL, help="Of jobs of this name.")
]
OlderThanOption = Annotated[
    timedelta | None,
    typer.Option(
        parser=parse_duration,
        metavar="DURATION",
        rich_help_panel=_FILTER_PANEL,
        help="Died longer ago.",
    ),
]
NewerThanOption = Annotated[
    timedelta | None,
    typer.Option(
        parser=parse_duration,
        metavar="DURATION",
        rich_help_panel=_FILTER_PANEL,
        help="Died since then.",
    ),
]
TextOption = Annotated[
    str | None, typer.Option("--text", rich_help_panel=_FILTER_PANEL, help="In the error.")
]
BatchIdOption = Annotated[
    str | None, typer.Option("--batch", rich_help_panel=_FILTER_PANEL, help="Of a batch.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only say what would happen.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
AllOption = Annotated[bool, typer.Option("--all", help="No limit.")]


def _build_filter(**options: Any) -> DeadLetterQuery:
    chosen: Any = {name: value for name, value in options.items() if value}
    return chosen  # type: ignore[no-any-return]


@with_connection_options
def peek(
    queue_name: QueueNameArgument,
    server: Server,
    limit: LimitOption = 20,
    after: Annotated[
        str | None, typer.Option(metavar="ID", help="Go on behind this letter.")
    ] = None,
    newest_first: Annotated[bool, typer.Option("--newest", help="Newest first.")] = False,
    dlq_ids: DlqIdsOption = None,
    job_ids: JobIdsOption = None,
    reason: ReasonOption = None,
    job_name: JobNameOption = None,
    older_than: OlderThanOption = None,
    newer_than: NewerThanOption = None,
    text: TextOption = None,
    batch_id: BatchIdOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show dead letters, a page at a time, and count their reasons."""
    chosen = _build_filter(
        ids=dlq_ids, job_ids=job_ids, reason=reason, name=job_name, older_than=older_than,
        newer_than=newer_than, text=text, batch=batch_id,
    )  # fmt: skip
    with server.open_queue(queue_name) as opened:
        found = opened.dead_letters(limit=limit, after=after, newest_first=newest_first, **chosen)
    reasons = Counter(each.reason for each in found)
    more = found[-1].id if len(found) == limit else None
    if as_json:
        letters = [to_dict(each) for each in found]
        output.print_json(
            {"queue": queue_name, "dead_letters": letters, "reasons": dict(reasons), "next": more}
        )
        return
    if not found:
        output.print_line("no letters")
        return
    columns = [
        Column("dlq id"), Column("source_id", optional=True), Column("name"),
        Column("reason"), Column("runs", align_right=True, optional=True), Column("died", align_right=True),
        Column("detail", flexible=True), Column("payload bytes", align_right=True, optional=True),
    ]  # fmt: skip
    output.print_table(columns, [_row(each) for each in found])
    output.print_line("")
    counts = [(reason, count) for reason, count in reasons.most_common()]
    output.print_table([Column("reason"), Column("count", align_right=True)], counts)
    if more is not None:
        output.print_line(f"more: --after {more}", style="dim")


def _row(dead_letter: DeadLetter) -> tuple[object, ...]:
    return (
        dead_letter.id,
        dead_letter.source_id,
        dead_letter.job_name or "-",
        dead_letter.reason,
        "-" if dead_letter.attempts is None else dead_letter.attempts,
        f"{format_duration(max(0, current_time_ms() - dead_lettered_at_ms(dead_letter)))} ago",
        truncate(dead_letter.error or dead_letter.detail or "-", 60),
        len(dead_letter.raw),
    )


def to_dict(dead_letter: DeadLetter) -> dict[str, Any]:
    payload, problem = read_payload(dead_letter.job)
    return {
        "dlq_id": dead_letter.id,
        "source_id": dead_letter.source_id,
        "job_id": dead_letter.job_id,
        "name": dead_letter.job_name,
        "reason": dead_letter.reason,
        "detail": dead_letter.detail,
        "error": dead_letter.error,
        "attempts": dead_letter.attempts,
        "failed_at_ms": dead_letter.failed_at_ms,
        "payload_bytes": len(dead_letter.raw),
        "payload": payload,
        **({"payload_error": problem} if problem else {}),
    }


@with_connection_options
def replay(
    queue_name: QueueNameArgument,
    server: Server,
    limit: LimitOption = 100,
    all: AllOption = False,
    max_replays: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Leave jobs that were replayed so often.")
    ] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    dlq_ids: DlqIdsOption = None,
    job_ids: JobIdsOption = None,
    reason: ReasonOption = None,
    job_name: JobNameOption = None,
    older_than: OlderThanOption = None,
    newer_than: NewerThanOption = None,
    text: TextOption = None,
    batch_id: BatchIdOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put dead jobs back on the queue, with a fresh budget of attempts. Asks first."""
    chosen = _build_filter(
        ids=dlq_ids, job_ids=job_ids, reason=reason, name=job_name, older_than=older_than,
        newer_than=newer_than, text=text, batch=batch_id,
    )  # fmt: skip
    most = None if all else limit
    with server.open_queue(queue_name) as opened:
        _confirm_and_run(
            "replay", queue_name, most, dry_run, yes, as_json,
            lambda dry: opened.replay_dead_letters(limit=most, max_replays=max_replays, dry_run=dry, **chosen),
        )  # fmt: skip


@with_connection_options
def purge(
    queue_name: QueueNameArgument,
    server: Server,
    limit: LimitOption = 100,
    all: AllOption = False,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    dlq_ids: DlqIdsOption = None,
    job_ids: JobIdsOption = None,
    reason: ReasonOption = None,
    job_name: JobNameOption = None,
    older_than: OlderThanOption = None,
    newer_than: NewerThanOption = None,
    text: TextOption = None,
    batch_id: BatchIdOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete dead letters for good. Asks first."""
    chosen = _build_filter(
        ids=dlq_ids, job_ids=job_ids, reason=reason, name=job_name, older_than=older_than,
        newer_than=newer_than, text=text, batch=batch_id,
    )  # fmt: skip
    most = None if all else limit
    with server.open_queue(queue_name) as opened:
        _confirm_and_run(
            "purge", queue_name, most, dry_run, yes, as_json,
            lambda dry: opened.purge_dead_letters(limit=most, dry_run=dry, **chosen),
        )  # fmt: skip


def _confirm_and_run(
    action: str, queue_name: str, limit: int | None, dry_run: bool, yes: bool, as_json: bool,
    operation: Callable[[bool], DeadLetterReport],
) -> None:  # fmt: skip
    """Say what would happen, ask, and do it."""
    if dry_run:
        report = operation(True)
    else:
        if not yes:
            _confirm(action, queue_name, operation(True))
        report = operation(False)
    if as_json:
        output.print_json({"queue": queue_name, "action": action, **asdict(report)})
        return
    did = f"would {action}" if dry_run else {"replay": "replayed", "purge": "purged"}[action]
    output.print_line(
        f"{did} {report.affected} of {report.matched if limit is None else limit} entries"
    )
    output.print_nonzero_counts(
        (report.max_replays_reached, "were replayed too often"),
        (report.unreadable, "cannot be read and stay where they are"),
        (report.missing, "were gone already"),
    )


def _confirm(action: str, queue_name: str, report: DeadLetterReport) -> None:
    count = report.affected
    things = "letter" if count == 1 else "letters"
    end = " for good" if action == "purge" else ""
    sys.stderr.write(
        output.escape_control(f"{action} {count} {things} of queue {queue_name!r}{end}? [y/N] ")
    )
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        output.print_line("nothing was done", err=True)
        raise typer.Exit(1)
