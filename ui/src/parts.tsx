// Small pieces that all views share.
import type { KeyboardEvent, ReactNode } from "react";
import { useEffect, useId, useRef } from "react";
import { Link } from "react-router-dom";

import type { Problem } from "./api";
import { ago, count, whole } from "./format";
import { pageLink, taskLink, type Place } from "./place";
import type { Batch, Origin, Text } from "./types";

export function To({ place, children, label }: { place: Place; children: ReactNode; label?: string }) {
  return (
    <Link to={pageLink(place)} aria-label={label}>
      {children}
    </Link>
  );
}

export function When({ at, relative = true }: { at: number | null; relative?: boolean }) {
  if (at === null) return <>–</>;
  return (
    <time dateTime={new Date(at).toISOString()} title={whole(at)}>
      {relative ? ago(at) : whole(at)}
    </time>
  );
}

const TONES: Record<string, string> = {
  waiting: "wait",
  running: "run",
  delayed: "later",
  done: "ok",
  dead: "bad",
  completed: "ok",
  dlq: "bad",
  failed: "bad",
  active: "run",
  "retry-scheduled": "warn",
};

export function State({ state }: { state: string }) {
  return <span className={`cq-state cq-${TONES[state] ?? "mute"}`}>{state}</span>;
}

export function Trouble({ problem, children }: { problem: Problem; children?: ReactNode }) {
  return (
    <div className="cq-trouble" role="alert">
      <strong>{problem.code ?? "Error"}</strong>
      <span>{problem.message}</span>
      {children}
    </div>
  );
}

export function Empty({ title, children }: { title: string; children?: ReactNode }) {
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

/** What to show while there is no data: nothing yet, or why not. */
export function Pending({ problem }: { problem: Problem | null }) {
  return problem ? <Trouble problem={problem} /> : <Loading />;
}

export function Bar({ batch, label }: { batch: Batch; label?: string }) {
  const total = batch.total ?? batch.sent;
  const part = (value: number): number => (total ? Math.min(100, (100 * value) / total) : 0);
  const settled = batch.done + batch.dead;
  const text = `${count(settled)} of ${count(total)} settled, ${count(batch.dead)} dead`;
  return (
    <div
      className="cq-bar"
      role="progressbar"
      aria-label={label ?? `Batch ${batch.id}`}
      aria-valuemin={0}
      aria-valuemax={total}
      aria-valuenow={settled}
      aria-valuetext={text}
      title={text}
    >
      <i className="cq-fill-ok" style={{ width: `${part(batch.done)}%` }} />
      <i className="cq-fill-bad" style={{ width: `${part(batch.dead)}%` }} />
    </div>
  );
}

export function percent(batch: Batch): string {
  const total = batch.total ?? batch.sent;
  if (!total) return batch.finished ? "100%" : "0%";
  const value = (100 * (batch.done + batch.dead)) / total;
  return `${value >= 100 ? 100 : Math.min(99.9, Math.floor(value * 10) / 10)}%`;
}

export function From({ origin }: { origin: Origin | null }) {
  if (!origin) return <span className="cq-mute-text">–</span>;
  const mapped = origin.map_index >= 0 ? ` [${origin.map_index}]` : "";
  return (
    <Link to={taskLink(origin)} title={`Run ${origin.run_id}`}>
      {origin.dag_id} / {origin.task_id}
      {mapped}
    </Link>
  );
}

export function Code({ text, label }: { text: Text | null; label: string }) {
  if (!text) return null;
  if (text.hidden) return <p className="cq-note">Payloads are hidden by the setting hide_payloads.</p>;
  return (
    <>
      <pre className="cq-code" tabIndex={0} aria-label={label}>
        {text.text}
      </pre>
      {text.cut ? <p className="cq-note">The rest is cut off: it is longer than 64 KB.</p> : null}
    </>
  );
}

export function Facts({ facts }: { facts: [string, ReactNode][] }) {
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

/** Tabs as screen readers know them: arrow keys move, the chosen one is in the tab order. */
export function Tabs({ items, chosen, choose, label }: {
  items: TabItem[];
  chosen: string;
  choose: (id: string) => void;
  label: string;
}) {
  const list = useRef<HTMLDivElement>(null);
  function onKey(event: KeyboardEvent): void {
    // From where the focus is: the choice may still be on its way through the address.
    const index = [...(list.current?.children ?? [])].indexOf(event.target as Element);
    const moves: Record<string, number> = {
      ArrowRight: (index + 1) % items.length,
      ArrowLeft: (index + items.length - 1) % items.length,
      Home: 0,
      End: items.length - 1,
    };
    const next = moves[event.key];
    if (next === undefined) return;
    event.preventDefault();
    choose(items[next].id);
    (list.current?.children[next] as HTMLElement | undefined)?.focus();
  }
  return (
    <div className="cq-tabs" role="tablist" aria-label={label} ref={list} onKeyDown={onKey}>
      {items.map((item) => (
        <button
          key={item.id}
          id={`cq-tab-${item.id}`}
          type="button"
          role="tab"
          aria-selected={item.id === chosen}
          aria-controls="cq-panel"
          tabIndex={item.id === chosen ? 0 : -1}
          onClick={() => choose(item.id)}
        >
          {item.label}
          {item.count ? <b className={item.bad ? "cq-bad" : ""}>{count(item.count)}</b> : null}
        </button>
      ))}
    </div>
  );
}

export function Panel({ tab, children }: { tab: string; children: ReactNode }) {
  return (
    <div className="cq-panel" id="cq-panel" role="tabpanel" aria-labelledby={`cq-tab-${tab}`}>
      {children}
    </div>
  );
}

export function Dialog({ title, close, children, wide = false }: {
  title: string;
  close: () => void;
  children: ReactNode;
  wide?: boolean;
}) {
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const shown = dialog.current;
    if (shown && !shown.open) shown.showModal();
    return () => shown?.close();
  }, []);
  return (
    <dialog
      ref={dialog}
      className={wide ? "cq-dialog cq-side" : "cq-dialog"}
      aria-labelledby={id}
      onCancel={(event) => {
        event.preventDefault();
        close();
      }}
      onClick={(event) => {
        if (event.target === dialog.current) close();
      }}
    >
      <div className="cq-dialog-body">
        <header>
          <h2 id={id}>{title}</h2>
          <button type="button" className="cq-icon" onClick={close} aria-label="Close">
            ×
          </button>
        </header>
        {children}
      </div>
    </dialog>
  );
}

export function Pager({ back, next, children }: {
  back: (() => void) | null;
  next: (() => void) | null;
  children?: ReactNode;
}) {
  return (
    <nav className="cq-pager" aria-label="Pages">
      <span>{children}</span>
      <button type="button" disabled={!back} onClick={() => back?.()}>
        Previous
      </button>
      <button type="button" disabled={!next} onClick={() => next?.()}>
        Next
      </button>
    </nav>
  );
}
