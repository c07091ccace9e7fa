// The tabs with the jobs, delayed jobs, repeats and consumers of a queue.
import { useState } from "react";

import { get, queuePath } from "./api";
import {
  Dash,
  EmptyState,
  ErrorNotice,
  JobLink,
  JobState,
  LoadingOrError,
  Pager,
  Timestamp,
  type QueueRef,
} from "./components";
import { formatCount, formatDuration, formatSize } from "./format";
import { usePoll } from "./polling";
import type { ConsumerGroup, DelayedRow, JobRow, RepeatRow } from "./types";

interface CursorHistory<T> {
  current: T | null;
  page: number;
  forward: (cursor: T) => void;
  back: (() => void) | null;
  reset: () => void;
}

/** Remember the cursor of every visited page, because the API only returns the next one. */
export function useCursorHistory<T>(): CursorHistory<T> {
  const [cursors, setCursors] = useState<T[]>([]);
  return {
    current: cursors.at(-1) ?? null,
    page: cursors.length + 1,
    forward: (cursor) => setCursors([...cursors, cursor]),
    back: cursors.length ? () => setCursors(cursors.slice(0, -1)) : null,
    reset: () => setCursors([]),
  };
}

const STATES: [state: string, label: string][] = [
  ["all", "All"],
  ["running", "Running"],
  ["waiting", "Waiting"],
];

export function JobsTab({ connection, queue }: QueueRef) {
  const [state, setState] = useState("all");
  const cursors = useCursorHistory<string>();
  const { data, problem } = usePoll(`jobs ${connection} ${queue} ${state} ${cursors.current}`, (signal) =>
    get<{ jobs: JobRow[]; next_cursor: string | null }>(
      queuePath(connection, "/jobs"),
      { queue_name: queue, state, cursor: cursors.current },
      signal,
    ),
  );
  return (
    <>
      <div className="cq-button-group" role="group" aria-label="State">
        {STATES.map(([value, label]) => (
          <button
            key={value}
            type="button"
            aria-pressed={value === state}
            onClick={() => {
              setState(value);
              cursors.reset();
            }}
          >
            {label}
          </button>
        ))}
      </div>
      {problem && data ? <ErrorNotice problem={problem} /> : null}
      {!data ? (
        <LoadingOrError problem={problem} />
      ) : data.jobs.length === 0 ? (
        <EmptyState title={state === "all" ? "No waiting or running jobs" : `No ${state} jobs`} />
      ) : (
        <div className="cq-scroll">
          <table className="cq-table">
            <caption className="cq-hidden">Jobs, oldest first</caption>
            <thead>
              <tr>
                <th scope="col">Job</th>
                <th scope="col">Name</th>
                <th scope="col">State</th>
                <th scope="col" className="cq-num">Attempt</th>
                <th scope="col">Worker</th>
                <th scope="col" className="cq-num">Enqueued</th>
                <th scope="col" className="cq-num">Size</th>
              </tr>
            </thead>
            <tbody>
              {data.jobs.map((job) => (
                <tr key={job.entry_id}>
                  <td><JobLink connection={connection} queue={queue} id={job.id} /></td>
                  <td>{job.name || <Dash />}</td>
                  <td><JobState state={job.state} /></td>
                  <td className="cq-num">{job.attempt ?? <Dash />}</td>
                  <td className="cq-id" title={job.idle_ms === null ? undefined : `Last heartbeat ${formatDuration(job.idle_ms)} ago`}>
                    {job.consumer ?? <Dash />}
                  </td>
                  <td className="cq-num"><Timestamp at={job.enqueued_at} /></td>
                  <td className="cq-num">{formatSize(job.size)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <Pager onPrevious={cursors.back} onNext={data?.next_cursor ? () => cursors.forward(data.next_cursor!) : null}>
        Page {cursors.page}
      </Pager>
    </>
  );
}

export function DelayedTab({ connection, queue }: QueueRef) {
  const starts = useCursorHistory<number>();
  const start = starts.current ?? 0;
  const { data, problem } = usePoll(`delayed ${connection} ${queue} ${start}`, (signal) =>
    get<{ jobs: DelayedRow[]; next_start: number | null }>(
      queuePath(connection, "/delayed"),
      { queue_name: queue, start },
      signal,
    ),
  );
  if (!data) return <LoadingOrError problem={problem} />;
  return (
    <>
      {problem ? <ErrorNotice problem={problem} /> : null}
      {data.jobs.length === 0 ? (
        <EmptyState title="No delayed jobs">Delayed jobs and jobs awaiting a retry are listed here until they are due.</EmptyState>
      ) : (
        <div className="cq-scroll">
          <table className="cq-table">
            <caption className="cq-hidden">Delayed jobs, next due first</caption>
            <thead>
              <tr>
                <th scope="col">Job</th>
                <th scope="col">Name</th>
                <th scope="col">Due</th>
                <th scope="col" className="cq-num">Attempt</th>
                <th scope="col" className="cq-num">Created</th>
                <th scope="col" className="cq-num">Size</th>
              </tr>
            </thead>
            <tbody>
              {data.jobs.map((job, index) => (
                <tr key={job.id ?? index}>
                  <td><JobLink connection={connection} queue={queue} id={job.id} /></td>
                  <td>{job.name || <Dash />}</td>
                  <td><Timestamp at={job.due_at} /></td>
                  <td className="cq-num">{job.attempt ?? <Dash />}</td>
                  <td className="cq-num"><Timestamp at={job.created_at} /></td>
                  <td className="cq-num">{formatSize(job.size)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <Pager
        onPrevious={starts.back}
        onNext={data.next_start !== null ? () => starts.forward(data.next_start!) : null}
      >
        Page {starts.page}
      </Pager>
    </>
  );
}

export function RepeatsTab({ connection, queue }: QueueRef) {
  const { data, problem } = usePoll(`repeats ${connection} ${queue}`, (signal) =>
    get<{ repeats: RepeatRow[] }>(queuePath(connection, "/repeats"), { queue_name: queue }, signal),
  );
  if (!data) return <LoadingOrError problem={problem} />;
  return (
    <>
      {problem ? <ErrorNotice problem={problem} /> : null}
      {data.repeats.length === 0 ? (
        <EmptyState title="No repeats">Jobs with a cron or interval schedule appear here.</EmptyState>
      ) : (
        <div className="cq-scroll">
          <table className="cq-table">
            <caption className="cq-hidden">Repeats, next run first</caption>
            <thead>
              <tr>
                <th scope="col">Key</th>
                <th scope="col">Name</th>
                <th scope="col">Schedule</th>
                <th scope="col">Next run</th>
                <th scope="col" className="cq-num">Runs</th>
                <th scope="col" title="What happens to runs that were missed while no scheduler was running">Misfire policy</th>
                <th scope="col">Ends</th>
              </tr>
            </thead>
            <tbody>
              {data.repeats.map((repeat) => (
                <tr key={repeat.key}>
                  <td className="cq-id">{repeat.key}</td>
                  <td>{repeat.name || <Dash />}</td>
                  <td>{repeat.schedule}</td>
                  <td><Timestamp at={repeat.next_at} /></td>
                  <td className="cq-num">
                    {formatCount(repeat.fired)}
                    {repeat.limit ? ` of ${formatCount(repeat.limit)}` : ""}
                  </td>
                  <td>{repeat.misfire}</td>
                  <td>{repeat.end_at ? <Timestamp at={repeat.end_at} /> : <span className="cq-faint">never</span>}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}

export function ConsumersTab({ connection, queue }: QueueRef) {
  const { data, problem } = usePoll(`consumers ${connection} ${queue}`, (signal) =>
    get<{ groups: ConsumerGroup[] }>(queuePath(connection, "/consumers"), { queue_name: queue }, signal),
  );
  if (!data) return <LoadingOrError problem={problem} />;
  return (
    <>
      {problem ? <ErrorNotice problem={problem} /> : null}
      {data.groups.length === 0 ? (
        <EmptyState title="No consumers yet">Start a worker: chasqui worker --queue {queue}</EmptyState>
      ) : null}
      {data.groups.map((group) => (
        <ConsumerGroupCard key={group.name} group={group} />
      ))}
    </>
  );
}

function ConsumerGroupCard({ group }: { group: ConsumerGroup }) {
  return (
    <section className="cq-group" aria-label={`Group ${group.name}`}>
      <header>
        <h3>{group.name}</h3>
        <span className="cq-soft">
          {group.is_worker_group ? "worker group" : "other group"} · {formatCount(group.pending)} running · lag{" "}
          {formatCount(group.lag)}
        </span>
      </header>
      {group.consumers.length === 0 ? (
        <p className="cq-note">This group has no consumers at the moment.</p>
      ) : (
        <table className="cq-table">
          <caption className="cq-hidden">Consumers of {group.name}</caption>
          <thead>
            <tr>
              <th scope="col">Consumer</th>
              <th scope="col" className="cq-num">Running</th>
              <th scope="col" className="cq-num">Last seen</th>
            </tr>
          </thead>
          <tbody>
            {group.consumers.map((consumer) => (
              <tr key={consumer.name}>
                <td className="cq-id">{consumer.name}</td>
                <td className="cq-num">{formatCount(consumer.pending)}</td>
                <td className="cq-num">{formatDuration(consumer.idle_ms)} ago</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {group.total > group.consumers.length ? (
        <p className="cq-note">
          The {formatCount(group.consumers.length)} most recently active of {formatCount(group.total)} consumers.
        </p>
      ) : null}
    </section>
  );
}
