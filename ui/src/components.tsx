// Components that all views share.
import type { KeyboardEvent, ReactNode } from "react";
import { useEffect, useId, useRef } from "react";
import { Link } from "react-router-dom";

import type { Problem } from "./api";
import { formatCount, formatDateTime, formatRelativeTime } from "./format";
import { pageUrl, taskUrl, type QueryParams } from "./queryParams";
import type { Batch, PayloadText, TaskOrigin } from "./types";

/** A queue of a connection. */
export interface QueueRef {
  connection: string;
  queue: string;
}

export function PageLink({ params, children, label }: { params: QueryParams; children: ReactNode; label?: string }) {
  return (
    <Link to={pageUrl(params)} aria-label={label}>
      {children}
    </Link>
  );
}

export function JobLink({ connection, queue, id }: QueueRef & { id: string | null }) {
  if (!id) return <span className="cq-bad-text">unreadable</span>;
  return (
    <span className="cq-id">
      <PageLink params={{ conn: connection, queue, job: id }}>{id}</PageLink>
    </span>
  );
}

export function TaskLink({ origin }: { origin: TaskOrigin | null }) {
  if (!origin) return <Dash />;
  const mapIndex = origin.map_index >= 0 ? ` [${origin.map_index}]` : "";
  return (
    <Link to={taskUrl(origin)} title={`Run ${origin.run_id}`}>
      {origin.dag_id} / {origin.task_id}
      {mapIndex}
    </Link>
  );
}

/** Placeholder for a missing value. */
export function Dash() {
  return <span className="cq-faint">–</span>;
}

export function Timestamp({ at, relative = true }: { at: number | null; relative?: boolean }) {
  if (at === null) return <Dash />;
  return (
    <time dateTime={new Date(at).toISOString()} title={formatDateTime(at)}>
      {relative ? formatRelativeTime(at) : formatDateTime(at)}
    </time>
  );
}

const STATE_TONES: Record<string, string> = {
  waiting: "waiting",
  running: "running",
  delayed: "delayed",
  done: "ok",
  dead: "bad",
};

export function JobState({ state }: { state: string }) {
  return <span className={`cq-state cq-${STATE_TONES[state] ?? "muted"}`}>{state}</span>;
}

export function ErrorNotice({ problem }: { problem: Problem }) {
  return (
    <div className="cq-error-notice" role="alert">
      <strong>{problem.code ?? "Error"}</strong>
      <span>{problem.message}</span>
    </div>
  );
}

export function EmptyState({ title, children }: { title: string; children?: ReactNode }) {
  return (
    <div className="cq-empty">
      <p className="cq-empty-title">{title}</p>
      {children ? <p>{children}</p> : null}
    </div>
  );
}

export function Loading() {
  return (
    <div className="cq-loading" role="status">
      <span className="cq-hidden">Loading</span>
      <i />
      <i />
      <i />
    </div>
  );
}

/** Shown while there is no data: the error of the first request, or a loading indicator. */
export function LoadingOrError({ problem }: { problem: Problem | null }) {
  return problem ? <ErrorNotice problem={problem} /> : <Loading />;
}

export function BatchProgressBar({ batch }: { batch: Batch }) {
  const total = batch.total ?? batch.enqueued;
  const percentOf = (value: number): number => (total ? Math.min(100, (100 * value) / total) : 0);
  const finished = batch.done + batch.dead;
  const text = `${formatCount(finished)} of ${formatCount(total)} finished, ${formatCount(batch.dead)} dead`;
  return (
    <div
      className="cq-progress"
      role="progressbar"
      aria-label={`Batch ${batch.id}`}
      aria-valuemin={0}
      aria-valuemax={total}
      aria-valuenow={finished}
      aria-valuetext={text}
      title={text}
    >
      <i className="cq-fill-ok" style={{ width: `${percentOf(batch.done)}%` }} />
      <i className="cq-fill-bad" style={{ width: `${percentOf(batch.dead)}%` }} />
    </div>
  );
}

export function DeadCount({ count }: { count: number }) {
  return count ? <b className="cq-bad-text">{formatCount(count)}</b> : <span className="cq-faint">0</span>;
}

/** The finished part of a batch. It is 100% only when the last job has finished. */
export function formatProgress(batch: Batch): string {
  const total = batch.total ?? batch.enqueued;
  if (!total) return batch.finished ? "100%" : "0%";
  const value = (100 * (batch.done + batch.dead)) / total;
  return `${value >= 100 ? 100 : Math.min(99.9, Math.floor(value * 10) / 10)}%`;
}

export function CodeBlock({ content, label }: { content: PayloadText | null; label: string }) {
  if (!content) return null;
  if (content.hidden) return <p className="cq-note">You do not have permission to see this. It depends on the DAG of the job and on the setting payloads.</p>;
  return (
    <>
      <pre className="cq-code" tabIndex={0} aria-label={label}>
        {content.text}
      </pre>
      {content.truncated ? <p className="cq-note">Only the first 64 KB are shown.</p> : null}
    </>
  );
}

export function ErrorText({ text }: { text: string }) {
  return (
    <>
      <h3>Error</h3>
      <pre className="cq-code cq-code-bad" tabIndex={0} aria-label="Error">{text}</pre>
    </>
  );
}

/** A list of names and values. A value that is null, undefined or empty is left out. */
export function FactList({ facts }: { facts: [string, ReactNode][] }) {
  const known = facts.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return (
    <dl className="cq-facts">
      {known.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

export interface TabItem {
  id: string;
  label: string;
  count?: number | null;
  bad?: boolean;
}

/** A tab list with the keyboard behaviour of the ARIA pattern: arrow keys, Home and End. */
export function Tabs({ items, selected, onSelect, label }: {
  items: TabItem[];
  selected: string;
  onSelect: (id: string) => void;
  label: string;
}) {
  const list = useRef<HTMLDivElement>(null);
  function onKeyDown(event: KeyboardEvent): void {
    // Start at the focused tab, because the selected one follows the URL with a delay.
    const index = [...(list.current?.children ?? [])].indexOf(event.target as Element);
    const targets: Record<string, number> = {
      ArrowRight: (index + 1) % items.length,
      ArrowLeft: (index + items.length - 1) % items.length,
      Home: 0,
      End: items.length - 1,
    };
    const next = targets[event.key];
    if (next === undefined) return;
    event.preventDefault();
    onSelect(items[next].id);
    (list.current?.children[next] as HTMLElement | undefined)?.focus();
  }
  return (
    <div className="cq-tabs" role="tablist" aria-label={label} ref={list} onKeyDown={onKeyDown}>
      {items.map((item) => (
        <button
          key={item.id}
          id={`cq-tab-${item.id}`}
          type="button"
          role="tab"
          aria-selected={item.id === selected}
          aria-controls="cq-panel"
          tabIndex={item.id === selected ? 0 : -1}
          onClick={() => onSelect(item.id)}
        >
          {item.label}
          {item.count ? <b className={item.bad ? "cq-bad" : ""}>{formatCount(item.count)}</b> : null}
        </button>
      ))}
    </div>
  );
}

export function TabPanel({ tab, children }: { tab: string; children: ReactNode }) {
  return (
    <div className="cq-panel" id="cq-panel" role="tabpanel" aria-labelledby={`cq-tab-${tab}`}>
      {children}
    </div>
  );
}

export function Dialog({ title, onClose, children, drawer = false }: {
  title: string;
  onClose: () => void;
  children: ReactNode;
  drawer?: boolean;
}) {
  const dialog = useRef<HTMLDialogElement>(null);
  const titleId = useId();
  useEffect(() => {
    const element = dialog.current;
    if (element && !element.open) element.showModal();
    return () => element?.close();
  }, []);
  return (
    <dialog
      ref={dialog}
      className={drawer ? "cq-dialog cq-drawer" : "cq-dialog"}
      aria-labelledby={titleId}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      onClick={(event) => {
        if (event.target === dialog.current) onClose();
      }}
    >
      <div className="cq-dialog-body">
        <header>
          <h2 id={titleId}>{title}</h2>
          <button type="button" className="cq-icon" onClick={onClose} aria-label="Close">
            ×
          </button>
        </header>
        {children}
      </div>
    </dialog>
  );
}

export function Pager({ onPrevious, onNext, children }: {
  onPrevious: (() => void) | null;
  onNext: (() => void) | null;
  children?: ReactNode;
}) {
  return (
    <nav className="cq-pager" aria-label="Pages">
      <span>{children}</span>
      <button type="button" disabled={!onPrevious} onClick={() => onPrevious?.()}>
        Previous
      </button>
      <button type="button" disabled={!onNext} onClick={() => onNext?.()}>
        Next
      </button>
    </nav>
  );
}
