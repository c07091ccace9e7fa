// Replay or purge of many dead letters: a dry run, a confirmation, then page by page with progress.
import { useEffect, useRef, useState } from "react";

import { post, queuePath, type Problem } from "./api";
import { Dialog, ErrorNotice, Loading, type QueueRef } from "./components";
import type { DeadLetterFilter } from "./DeadLettersTab";
import { formatCount, formatDeadLetters, formatDuration } from "./format";
import { toProblem } from "./polling";
import type { ChangeResult } from "./types";

export type Action = "replay" | "purge";

/** An action on the dead letters with these ids, or on all that match the filter if `ids` is null. */
export interface BulkAction {
  action: Action;
  ids: string[] | null;
}

interface Totals {
  matched: number;
  affected: number;
  maxReplaysReached: number;
  unreadable: number;
  missing: number;
  scanned: number;
}

const NO_TOTALS: Totals = { matched: 0, affected: 0, maxReplaysReached: 0, unreadable: 0, missing: 0, scanned: 0 };

function addResult(totals: Totals, result: ChangeResult): Totals {
  return {
    matched: totals.matched + result.matched,
    affected: totals.affected + result.affected,
    maxReplaysReached: totals.maxReplaysReached + result.max_replays_reached,
    unreadable: totals.unreadable + result.unreadable,
    missing: totals.missing + result.missing,
    scanned: totals.scanned + result.scanned,
  };
}

type Phase = "dry-run" | "confirm" | "running" | "done";

export function BulkActionDialog({ connection, queue, bulkAction, filter, onClose }: QueueRef & {
  bulkAction: BulkAction;
  filter: DeadLetterFilter;
  onClose: (changed: boolean) => void;
}) {
  const { action, ids } = bulkAction;
  const [phase, setPhase] = useState<Phase>("dry-run");
  const [dryRun, setDryRun] = useState<Totals>(NO_TOTALS);
  const [done, setDone] = useState<Totals>(NO_TOTALS);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [confirmed, setConfirmed] = useState(false);
  // The newest dead letter at the start: a job that dies again during the replay is not replayed twice.
  const lastId = useRef<string | null>(null);
  const stopped = useRef(false);

  /** Send page after page, and return whether the last page was reached. */
  async function runPages(isDryRun: boolean, onProgress: (totals: Totals) => void): Promise<boolean> {
    let totals = NO_TOTALS;
    let cursor: string | null = null;
    try {
      do {
        const result: ChangeResult = await post<ChangeResult>(
          queuePath(connection, `/dead-letters/${action}`),
          { queue_name: queue },
          { ids, filter, dry_run: isDryRun, cursor, last_id: lastId.current },
        );
        totals = addResult(totals, result);
        onProgress(totals);
        cursor = result.next_cursor;
        lastId.current ??= result.last_id;
      } while (cursor && !stopped.current);
      return !stopped.current;
    } catch (error) {
      setProblem(toProblem(error));
      return false;
    }
  }

  useEffect(() => {
    stopped.current = false;
    void runPages(true, setDryRun).then((finished) => {
      if (finished) setPhase("confirm");
    });
    return () => {
      stopped.current = true;
    };
    // eslint-disable-next-line
  }, []);

  async function start(): Promise<void> {
    setPhase("running");
    if (await runPages(false, setDone)) setPhase("done");
  }

  const isReplay = action === "replay";
  const eligible = isReplay ? dryRun.affected : dryRun.matched;
  const missing = ids ? ids.length - dryRun.matched : 0;
  const started = phase === "running" || phase === "done";
  return (
    <Dialog title={isReplay ? "Replay dead letters" : "Purge dead letters"} onClose={() => onClose(started)}>
      <p className="cq-note">
        Queue {queue}: {ids ? "selected dead letters" : describeFilter(filter)}
      </p>
      {problem ? <ErrorNotice problem={problem} /> : null}
      {phase === "dry-run" && !problem ? (
        <>
          <Loading />
          <p aria-live="polite">Dry run: {formatCount(dryRun.matched)} matches in {formatDeadLetters(dryRun.scanned)}.</p>
        </>
      ) : null}
      {phase === "confirm" ? (
        <>
          <p className="cq-result" aria-live="polite">
            Dry run: <b>{formatDeadLetters(eligible)}</b> {isReplay ? "would be moved back to the queue." : "would be deleted."}
          </p>
          {isReplay && dryRun.unreadable ? (
            <p className="cq-note">{formatDeadLetters(dryRun.unreadable)} cannot be decoded and would stay.</p>
          ) : null}
          {missing > 0 ? <p className="cq-note">{formatDeadLetters(missing)} no longer exist.</p> : null}
          {!isReplay && eligible ? (
            <label className="cq-confirm">
              <input type="checkbox" checked={confirmed} onChange={() => setConfirmed(!confirmed)} />
              I understand that this cannot be undone.
            </label>
          ) : null}
        </>
      ) : null}
      {started ? (
        <p className="cq-result" aria-live="polite" role="status">
          <b>{phase === "running" ? `${formatCount(done.affected)} of ${formatDeadLetters(eligible)}` : formatDeadLetters(done.affected)}</b>{" "}
          {isReplay ? "moved back to the queue." : "deleted."}
          {done.maxReplaysReached ? ` ${formatCount(done.maxReplaysReached)} reached the maximum number of replays and stay.` : ""}
          {done.missing ? ` ${formatCount(done.missing)} no longer existed.` : ""}
        </p>
      ) : null}
      <footer>
        {phase === "done" ? (
          <button type="button" className="cq-primary" onClick={() => onClose(true)} autoFocus>Close</button>
        ) : (
          <>
            <button type="button" onClick={() => onClose(started)}>{phase === "running" ? "Stop" : "Cancel"}</button>
            <button
              type="button"
              className={isReplay ? "cq-primary" : "cq-danger cq-solid"}
              disabled={phase !== "confirm" || !eligible || (!isReplay && !confirmed)}
              onClick={() => void start()}
            >
              {isReplay ? "Replay" : "Purge"} {phase === "confirm" ? formatDeadLetters(eligible) : ""}
            </button>
          </>
        )}
      </footer>
    </Dialog>
  );
}

function describeFilter(filter: DeadLetterFilter): string {
  const conditions = Object.entries(filter).map(([field, value]) => {
    switch (field) {
      case "newer_than_s":
        return `newer than ${formatDuration(Number(value) * 1000)}`;
      case "older_than_s":
        return `older than ${formatDuration(Number(value) * 1000)}`;
      case "text":
        return `error contains "${value}"`;
      default:
        return `${field.replace("_id", "").replace("_", " ")} ${value}`;
    }
  });
  return conditions.length ? `dead letters with ${conditions.join(", ")}` : "all dead letters";
}
