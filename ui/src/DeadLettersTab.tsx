// The dead letters of a queue: filter, list, select, show one, replay and purge.
import { useEffect, useState } from "react";

import { get, queuePath } from "./api";
import { BulkActionDialog, type Action, type BulkAction } from "./BulkActionDialog";
import {
  CodeBlock,
  Dash,
  Dialog,
  EmptyState,
  ErrorNotice,
  ErrorText,
  FactList,
  JobLink,
  LoadingOrError,
  PageLink,
  Pager,
  Timestamp,
  type QueueRef,
} from "./components";
import { formatCount, formatDeadLetters, formatSize } from "./format";
import { usePoll } from "./polling";
import { useQueryParams } from "./queryParams";
import { useCursorHistory } from "./queueTabs";
import type { DeadLetter, DeadLetterDetail, DeadLetterPage, Facets } from "./types";

const AGES: [key: string, label: string, filter: Record<string, number>][] = [
  ["", "Any age", {}],
  ["newer-3600", "Last hour", { newer_than_s: 3600 }],
  ["newer-86400", "Last 24 hours", { newer_than_s: 86400 }],
  ["older-3600", "Older than 1 hour", { older_than_s: 3600 }],
  ["older-86400", "Older than 1 day", { older_than_s: 86400 }],
  ["older-604800", "Older than 1 week", { older_than_s: 604800 }],
];

/** The query parameters of this tab. */
export const NO_FILTER = { reason: null, job_name: null, age: null, text: null, in_batch: null, dead_letter: null };

export type DeadLetterFilter = Record<string, string | number>;

export function DeadLettersTab({ connection, queue, canEdit }: QueueRef & { canEdit: boolean }) {
  // The filter is in the URL, so that a link or the back button restores it.
  const [params, navigate] = useQueryParams();
  const [reason, jobName, age, text, batchId] = ["reason", "job_name", "age", "text", "in_batch"].map(
    (key) => params.get(key) ?? "",
  );
  const openId = params.get("dead_letter");
  const setParam = (key: string) => (value: string) => navigate({ [key]: value }, true);
  const [textInput, setTextInput] = useState(text);
  useEffect(() => {
    if (textInput === text) return;
    const timer = setTimeout(() => navigate({ text: textInput }, true), 300);
    return () => clearTimeout(timer);
  }, [textInput, text, navigate]);
  const cursors = useCursorHistory<string>();
  const [selected, setSelected] = useState<Set<string>>(new Set());
  const [bulkAction, setBulkAction] = useState<BulkAction | null>(null);

  const filter: DeadLetterFilter = { ...(AGES.find(([key]) => key === age) ?? AGES[0])[2] };
  if (reason) filter.reason = reason;
  if (jobName) filter.job_name = jobName;
  if (text) filter.text = text;
  if (batchId) filter.batch_id = batchId;
  const filtered = Object.keys(filter).length > 0;
  const filterKey = JSON.stringify(filter);

  const { data, problem, reload } = usePoll(
    `dead-letters ${connection} ${queue} ${filterKey} ${cursors.current}`,
    (signal) =>
      get<DeadLetterPage>(
        queuePath(connection, "/dead-letters"),
        { queue_name: queue, ...filter, cursor: cursors.current },
        signal,
      ),
  );
  const facets = usePoll(`facets ${connection} ${queue}`, (signal) =>
    get<Facets>(queuePath(connection, "/dead-letters/facets"), { queue_name: queue }, signal),
  ).data;
  useEffect(() => {
    // Another filter shows other rows: clear the selection, because the user cannot see it any more.
    cursors.reset();
    setSelected(new Set());
    // eslint-disable-next-line
  }, [filterKey]);

  const rows = data?.dead_letters ?? [];
  const allSelected = rows.length > 0 && rows.every((row) => selected.has(row.id));
  const scope = selected.size ? "selected" : filtered ? "all matching" : "all";
  const startAction = (action: Action) => setBulkAction({ action, ids: selected.size ? [...selected] : null });
  const actionProps = {
    type: "button" as const,
    disabled: !canEdit || !rows.length,
    title: canEdit ? undefined : "You need permission to edit this connection",
  };
  return (
    <>
      <div className="cq-filters" role="search" aria-label="Filter dead letters">
        <FacetSelect label="Reason" value={reason} onChange={setParam("reason")} options={facets?.reasons ?? []} />
        <FacetSelect label="Name" value={jobName} onChange={setParam("job_name")} options={facets?.job_names ?? []} />
        <select value={age} aria-label="Age" onChange={(event) => setParam("age")(event.target.value)}>
          {AGES.map(([value, label]) => (
            <option key={value} value={value}>{label}</option>
          ))}
        </select>
        <input
          type="search"
          value={textInput}
          placeholder="Search in errors"
          aria-label="Search in errors"
          onChange={(event) => setTextInput(event.target.value)}
        />
        {batchId ? (
          <button type="button" className="cq-chip" onClick={() => navigate({ in_batch: null }, true)} aria-label={`Remove the filter batch ${batchId}`}>
            batch {batchId} ×
          </button>
        ) : null}
      </div>
      <div className="cq-actions">
        <span aria-live="polite">
          {selected.size ? `${formatCount(selected.size)} selected` : data ? describePage(data, filtered) : ""}
        </span>
        {selected.size ? (
          <button type="button" className="cq-plain" onClick={() => setSelected(new Set())}>Clear selection</button>
        ) : null}
        <button {...actionProps} onClick={() => startAction("replay")}>Replay {scope}</button>
        <button {...actionProps} className="cq-danger" onClick={() => startAction("purge")}>Purge {scope}</button>
      </div>
      {problem && data ? <ErrorNotice problem={problem} /> : null}
      {!data ? (
        <LoadingOrError problem={problem} />
      ) : rows.length === 0 && data.next_cursor ? (
        <EmptyState title="No matches yet">Go to the next page to continue the search.</EmptyState>
      ) : rows.length === 0 && filtered ? (
        <EmptyState title="No matching dead letters" />
      ) : rows.length === 0 ? (
        <EmptyState title="No dead letters">
          Jobs that failed in all attempts, or that cannot be decoded, appear here.
        </EmptyState>
      ) : (
        <div className="cq-scroll">
          <table className="cq-table cq-dead-letters">
            <caption className="cq-hidden">Dead letters, newest first</caption>
            <thead>
              <tr>
                <th scope="col" className="cq-check">
                  <input
                    type="checkbox"
                    aria-label="Select all on this page"
                    checked={allSelected}
                    onChange={() => setSelected(withRows(selected, rows, !allSelected))}
                  />
                </th>
                <th scope="col">Reason</th>
                <th scope="col">Name</th>
                <th scope="col">Error</th>
                <th scope="col">Job</th>
                <th scope="col" className="cq-num">Attempts</th>
                <th scope="col" className="cq-num">Died</th>
              </tr>
            </thead>
            <tbody>
              {rows.map((row) => (
                <tr key={row.id} aria-selected={selected.has(row.id)}>
                  <td className="cq-check">
                    <input
                      type="checkbox"
                      aria-label={`Select dead letter ${row.id}`}
                      checked={selected.has(row.id)}
                      onChange={() => setSelected(withRows(selected, [row], !selected.has(row.id)))}
                    />
                  </td>
                  <td><span className="cq-reason">{row.reason}</span></td>
                  <td>{row.job_name || <Dash />}</td>
                  <td className="cq-error">
                    <button
                      type="button"
                      className="cq-row-open"
                      onClick={() => navigate({ dead_letter: row.id })}
                      aria-label={`Open dead letter ${row.id}`}
                    >
                      {row.error ?? "Open"}
                    </button>
                  </td>
                  <td><JobLink connection={connection} queue={queue} id={row.job_id} /></td>
                  <td className="cq-num">{row.attempts ?? <Dash />}</td>
                  <td className="cq-num"><Timestamp at={row.dead_at} /></td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <Pager onPrevious={cursors.back} onNext={data?.next_cursor ? () => cursors.forward(data.next_cursor!) : null}>
        Page {cursors.page}
      </Pager>
      {openId ? (
        <DeadLetterDrawer
          connection={connection}
          queue={queue}
          id={openId}
          canEdit={canEdit}
          onClose={() => navigate({ dead_letter: null })}
          onAction={(action) => {
            navigate({ dead_letter: null });
            setBulkAction({ action, ids: [openId] });
          }}
        />
      ) : null}
      {bulkAction ? (
        <BulkActionDialog
          connection={connection}
          queue={queue}
          bulkAction={bulkAction}
          filter={bulkAction.ids ? {} : filter}
          onClose={(changed) => {
            setBulkAction(null);
            if (changed) {
              setSelected(new Set());
              cursors.reset();
              reload();
            }
          }}
        />
      ) : null}
    </>
  );
}

function describePage(page: DeadLetterPage, filtered: boolean): string {
  if (!filtered) return formatDeadLetters(page.total);
  const matches = page.dead_letters.length;
  const count = `${formatCount(matches)} ${matches === 1 ? "match" : "matches"}`;
  if (!page.next_cursor) return `${count}, ${formatDeadLetters(page.total)} in total`;
  return `${count} in the ${formatCount(page.scanned)} dead letters searched for this page, ${formatCount(page.total)} in total`;
}

function withRows(selected: Set<string>, rows: DeadLetter[], select: boolean): Set<string> {
  const next = new Set(selected);
  for (const row of rows) {
    if (select) next.add(row.id);
    else next.delete(row.id);
  }
  return next;
}

function FacetSelect({ label, value, onChange, options }: {
  label: string;
  value: string;
  onChange: (value: string) => void;
  options: [value: string, count: number][];
}) {
  const listed = options.some(([option]) => option === value);
  return (
    <select value={value} aria-label={label} onChange={(event) => onChange(event.target.value)}>
      <option value="">Any {label.toLowerCase()}</option>
      {value && !listed ? <option value={value}>{value}</option> : null}
      {options.filter(([option]) => option).map(([option, count]) => (
        <option key={option} value={option}>{option} ({formatCount(count)})</option>
      ))}
    </select>
  );
}

function DeadLetterDrawer({ connection, queue, id, canEdit, onClose, onAction }: QueueRef & {
  id: string;
  canEdit: boolean;
  onClose: () => void;
  onAction: (action: Action) => void;
}) {
  const { data, problem } = usePoll(`dead-letter ${connection} ${queue} ${id}`, (signal) =>
    get<DeadLetterDetail>(queuePath(connection, `/dead-letters/${id}`), { queue_name: queue }, signal),
  );
  return (
    <Dialog title={`Dead letter ${id}`} onClose={onClose} drawer>
      {!data ? (
        <LoadingOrError problem={problem} />
      ) : (
        <>
          {problem ? <ErrorNotice problem={problem} /> : null}
          <FactList
            facts={[
              ["Job", <JobLink key="job" connection={connection} queue={queue} id={data.job_id} />],
              ["Name", data.job_name],
              ["Reason", <span key="reason" className="cq-reason">{data.reason}</span>],
              ["Attempts", data.attempts],
              ["Died", <Timestamp key="dead" at={data.dead_at} relative={false} />],
              ["Created", data.created_at ? <Timestamp key="created" at={data.created_at} relative={false} /> : null],
              ["Batch", data.batch_id ? <PageLink key="batch" params={{ conn: connection, queue, batch: data.batch_id }}>{data.batch_id}</PageLink> : null],
              ["Size", formatSize(data.size)],
            ]}
          />
          {data.error || data.detail ? <ErrorText text={[data.error, data.detail].filter(Boolean).join("\n")} /> : null}
          <h3>Payload</h3>
          {data.payload ? (
            <CodeBlock content={data.payload} label="Payload" />
          ) : (
            <p className="cq-note">This entry cannot be decoded. It can be purged but not replayed.</p>
          )}
          <footer>
            <button type="button" disabled={!canEdit || !data.readable} onClick={() => onAction("replay")}>Replay</button>
            <button type="button" className="cq-danger" disabled={!canEdit} onClick={() => onAction("purge")}>Purge</button>
          </footer>
        </>
      )}
    </Dialog>
  );
}
