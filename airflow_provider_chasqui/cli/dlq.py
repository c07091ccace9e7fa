"""The commands `dlq peek`, `dlq show`, `dlq replay` and `dlq purge`."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from typing import Annotated, Any, Literal, cast

import typer

from airflow_provider_chasqui.cli import output
from airflow_provider_chasqui.cli.jobs import read_payload
from airflow_provider_chasqui.cli.output import Column, compact_json, shorten_middle, truncate
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
from airflow_provider_chasqui.core.durations import format_duration, format_timestamp
from airflow_provider_chasqui.core.errors import JobNotFound
from airflow_provider_chasqui.core.job import DeadLetter
from airflow_provider_chasqui.core.queue_flows import DeadLetterQuery

_FILTER_PANEL = "Filters"
_MAX_ID_LENGTH = 32
_STREAM_ID = re.compile(r"\d+-\d+")

DlqIdsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--id",
        metavar="ID",
        rich_help_panel=_FILTER_PANEL,
        help="Filter by id of the dead letter. Can be repeated.",
    ),
]
JobIdsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--job-id",
        metavar="ID",
        rich_help_panel=_FILTER_PANEL,
        help="Filter by job id. Can be repeated.",
    ),
]
ReasonOption = Annotated[
    str | None,
    typer.Option(rich_help_panel=_FILTER_PANEL, help="Filter by reason, e.g. retries_exhausted."),
]
JobNameOption = Annotated[
    str | None, typer.Option(rich_help_panel=_FILTER_PANEL, help="Filter by job name.")
]
OlderThanOption = Annotated[
    timedelta | None,
    typer.Option(
        parser=parse_duration,
        metavar="DURATION",
        rich_help_panel=_FILTER_PANEL,
        help="Only jobs that died at least DURATION ago.",
    ),
]
NewerThanOption = Annotated[
    timedelta | None,
    typer.Option(
        parser=parse_duration,
        metavar="DURATION",
        rich_help_panel=_FILTER_PANEL,
        help="Only jobs that died within the last DURATION.",
    ),
]
TextOption = Annotated[
    str | None,
    typer.Option(
        "--text", rich_help_panel=_FILTER_PANEL, help="Filter by text in the error or the detail."
    ),
]
BatchIdOption = Annotated[
    str | None,
    typer.Option("--batch-id", rich_help_panel=_FILTER_PANEL, help="Filter by batch id."),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only report what would be changed.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation.")]
ActionLimitOption = Annotated[
    int,
    typer.Option(
        "--limit",
        metavar="N",
        min=1,
        max=1_000_000,
        help="Maximum number of dead letters to process, oldest first.",
    ),
]
AllOption = Annotated[bool, typer.Option("--all", help="Process all matching dead letters.")]


def _build_query(**filters: Any) -> DeadLetterQuery:
    return cast(DeadLetterQuery, {name: value for name, value in filters.items() if value})


@with_connection_options
def peek(
    queue_name: QueueNameArgument,
    server: Server,
    limit: LimitOption = 20,
    after: Annotated[
        str | None, typer.Option(metavar="ID", help="Continue after this dead letter.")
    ] = None,
    newest_first: Annotated[bool, typer.Option("--newest-first", help="Newest first.")] = False,
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
    """Show a page of dead letters and count their reasons."""
    query = _build_query(
        ids=dlq_ids,
        job_ids=job_ids,
        reason=reason,
        job_name=job_name,
        older_than=older_than,
        newer_than=newer_than,
        text=text,
        batch_id=batch_id,
    )
    with server.open_existing_queue(queue_name) as queue:
        total = queue.depth().dead
        page = queue.dead_letters(limit=limit, after=after, newest_first=newest_first, **query)
    reasons = Counter(dead_letter.reason for dead_letter in page)
    next_cursor = page[-1].id if len(page) == limit else None
    if as_json:
        output.print_json(
            {
                "queue_name": queue_name,
                "dead_letters": [to_dict(dead_letter) for dead_letter in page],
                "reasons": dict(reasons),
                "total": total,
                "next": next_cursor,
            }
        )
        return
    if not page:
        output.print_line("no dead letters")
        return
    columns = [
        Column("dlq id"),
        Column("job id"),
        Column("name"),
        Column("reason", optional=True),
        Column("attempts", align_right=True, optional=True),
        Column("died", align_right=True),
        Column("error", flexible=True),
        Column("payload", flexible=True),
    ]
    output.print_table(columns, [_row(dead_letter) for dead_letter in page])
    output.print_line("")
    output.print_table([Column("reason"), Column("count", align_right=True)], reasons.most_common())
    if query:
        output.print_line(f"{len(page)} that match, of {total} dead letters", style="dim")
    else:
        output.print_line(f"{len(page)} of {total} dead letters", style="dim")
    if next_cursor is not None:
        output.print_line(f"more: --after {next_cursor}", style="dim")


def _row(dead_letter: DeadLetter) -> tuple[object, ...]:
    age_ms = max(0, current_time_ms() - dead_lettered_at_ms(dead_letter))
    payload, problem = read_payload(dead_letter.job)
    return (
        dead_letter.id,
        shorten_middle(dead_letter.job_id or "-", _MAX_ID_LENGTH),
        dead_letter.job_name or "-",
        dead_letter.reason,
        "-" if dead_letter.attempts is None else dead_letter.attempts,
        f"{format_duration(age_ms)} ago",
        truncate(dead_letter.error or dead_letter.detail or "-", 80),
        f"({problem})" if problem else truncate(compact_json(payload), 60),
    )


def to_dict(dead_letter: DeadLetter) -> dict[str, Any]:
    """Return a dead letter as JSON values, with its payload.

    :param dead_letter: the dead letter.
    """
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
def show(
    queue_name: QueueNameArgument,
    dlq_id: Annotated[
        str, typer.Argument(metavar="ID", help="Id of the dead letter, or of its job.")
    ],
    server: Server,
    as_json: JsonOption = False,
) -> None:
    """Show one dead letter: its job, its error with the traceback, and its payload."""
    with server.open_existing_queue(queue_name) as queue:
        page = queue.dead_letters(ids=[dlq_id], limit=1) if _STREAM_ID.fullmatch(dlq_id) else []
        if not page:
            page = queue.dead_letters(job_ids=[dlq_id], limit=1, newest_first=True)
    if not page:
        raise JobNotFound(
            "no dead letter and no job of a dead letter has this id; "
            f"list them with: chasqui dlq peek {queue_name}",
            queue_name=queue_name,
            job_id=dlq_id,
        )
    fields = to_dict(page[0])
    if as_json:
        output.print_json(fields)
        return
    detail = fields.pop("detail")
    pairs = [
        (name.removesuffix("_ms").replace("_", " "), _format_field(name, value))
        for name, value in fields.items()
        if value not in (None, "")
    ]
    output.console().print(output.key_value_table(pairs))
    if detail:
        output.print_line("")
        for line in str(detail).splitlines():
            output.print_line(line)


def _format_field(name: str, value: Any) -> object:
    if name == "payload":
        return truncate(compact_json(value), 2000)
    return format_timestamp(value) if name.endswith("_ms") else value


@with_connection_options
def replay(
    queue_name: QueueNameArgument,
    server: Server,
    limit: ActionLimitOption = 100,
    all: AllOption = False,
    max_replays: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Skip jobs already replayed N times.")
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
    """Move dead jobs back to the queue. Their attempts start again. Asks for confirmation."""
    query = _build_query(
        ids=dlq_ids,
        job_ids=job_ids,
        reason=reason,
        job_name=job_name,
        older_than=older_than,
        newer_than=newer_than,
        text=text,
        batch_id=batch_id,
    )
    max_dead_letters = None if all else limit

    def run(dry_run: bool) -> DeadLetterReport:
        return queue.replay_dead_letters(
            limit=max_dead_letters, max_replays=max_replays, dry_run=dry_run, **query
        )

    with server.open_existing_queue(queue_name) as queue:
        report = _confirm_and_run("replay", queue_name, dry_run, yes, run)
        remaining = queue.depth().dead
    _print_report("replay", queue_name, as_json, report, remaining)


@with_connection_options
def purge(
    queue_name: QueueNameArgument,
    server: Server,
    limit: ActionLimitOption = 100,
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
    """Delete dead letters permanently. Asks for confirmation."""
    query = _build_query(
        ids=dlq_ids,
        job_ids=job_ids,
        reason=reason,
        job_name=job_name,
        older_than=older_than,
        newer_than=newer_than,
        text=text,
        batch_id=batch_id,
    )
    max_dead_letters = None if all else limit

    def run(dry_run: bool) -> DeadLetterReport:
        return queue.purge_dead_letters(limit=max_dead_letters, dry_run=dry_run, **query)

    with server.open_existing_queue(queue_name) as queue:
        report = _confirm_and_run("purge", queue_name, dry_run, yes, run)
        remaining = queue.depth().dead
    _print_report("purge", queue_name, as_json, report, remaining)


_Action = Literal["replay", "purge"]


def _confirm_and_run(
    action: _Action,
    queue_name: str,
    dry_run: bool,
    yes: bool,
    run: Callable[[bool], DeadLetterReport],
) -> DeadLetterReport:
    """Run the action, after a dry run and a confirmation unless `yes` is given."""
    if dry_run:
        return run(True)
    if not yes:
        _confirm(action, queue_name, run(True).affected)
    return run(False)


def _confirm(action: _Action, queue_name: str, count: int) -> None:
    noun = "dead letter" if count == 1 else "dead letters"
    permanently = " permanently" if action == "purge" else ""
    question = f"{action} {count} {noun} of queue {queue_name!r}{permanently}? [y/N] "
    sys.stderr.write(output.escape_control(question))
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        output.print_line("not confirmed; nothing was changed", err=True)
        raise typer.Exit(1)


def _print_report(
    action: _Action, queue_name: str, as_json: bool, report: DeadLetterReport, remaining: int
) -> None:
    if as_json:
        output.print_json(
            {
                "queue_name": queue_name,
                "action": action,
                **asdict(report),
                "remaining": remaining,
            }
        )
        return
    done = (
        f"would {action}" if report.dry_run else {"replay": "replayed", "purge": "purged"}[action]
    )
    output.print_line(
        f"{done} {report.affected} of {report.matched} selected dead letters; "
        f"the queue has {remaining}"
    )
    output.print_nonzero_counts(
        (report.max_replays_reached, "had reached the maximum number of replays"),
        (report.unreadable, "are not readable and stay in the DLQ"),
        (report.missing, "did not exist any more"),
    )
