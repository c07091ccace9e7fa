// The plain lists of a queue: jobs, delayed jobs, repeats, consumers.
import { useState } from "react";

import { get, queuePath } from "./api";
import { count, size, span } from "./format";
import { Empty, Pager, Pending, State, To, Trouble, When } from "./parts";
import { usePoll } from "./poll";
import type { DelayedRow, Group, JobRow, RepeatRow } from "./types";

export interface Where {
  connection: string;
  queue: string;
}

/** Pages that only know the way forward: remember where each one began. */
export function useTrail<T>(): { at: T | null; page: number; forward: (to: T) => void; back: (() => void) | null; reset: () => void } {
  const [trail, setTrail] = useState<T[]>([]);
  return {
    at: trail.at(-1) ?? null,
    page: trail.length + 1,
    forward: (to) => setTrail([...trail, to]),
    back: trail.length ? () => setTrail(trail.slice(0, -1)) : null,
    reset: () => setTrail([]),
  };
}

export function JobId({ connection, queue, id }: Where & { id: string | null }) {
  if (!id) return <span className="cq-bad-text">unreadable</span>;
  return (
    <span className="cq-id">
      <To place={{ conn: connection, queue, job: id }}>{id}</To>
    </span>
  );
}

const STATES: [string, string][] = [
  ["all", "All"],
  ["running", "Running"],
  ["waiting", "Waiting"],
];

export function JobsTab({ connection, queue }: Where) {
  const [state, setState] = useState("all");
  const trail = useTrail<string>();
  const { data, problem } = usePoll(`jobs ${connection} ${queue} ${state} ${trail.at}`, (signal) =>
    get<{ jobs: JobRow[]; after: string | null }>(
      queuePath(connection, "/jobs"),
      { queue_name: queue, state, after: trail.at },
      signal,
    ),
  );
  return (
    <>
      <div className="cq-ranges" role="group" aria-label="State">
        {STATES.map(([value, label]) => (
          <button
            key={value}
            type="button"
            aria-pressed={value === state}
            onClick={() => {
              setState(value);
              trail.reset();
            }}
          >
            {label}
          </button>
        ))}
      </div>
      {problem && data ? <Trouble problem={problem} /> : null}
      {!data ? (
        <Pending problem={problem} />
      ) : data.jobs.length === 0 ? (
        <Empty title={state === "all" ? "Nothing waits and nothing runs" : `Nothing is ${state}`} />
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
                <th scope="col" className="cq-num">Queued</th>
                <th scope="col" className="cq-num">Size</th>
              </tr>
            </thead>
            <tbody>
              {data.jobs.map((job) => (
                <tr key={job.entry_id}>
                  <td><JobId connection={connection} queue={queue} id={job.id} /></td>
                  <td>{job.name || <span className="cq-zero">–</span>}</td>
                  <td><State state={job.state} /></td>
                  <td className="cq-num">{job.attempt === null ? "–" : job.attempt + 1}</td>
                  <td className="cq-id" title={job.idle_ms === null ? undefined : `Last sign ${span(job.idle_ms)} ago`}>
                    {job.consumer ?? <span className="cq-zero">–</span>}
                  </td>
                  <td className="cq-num"><When at={job.at} /></td>
                  <td className="cq-num">{size(job.size)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <Pager back={trail.back} next={data?.after ? () => trail.forward(data.after!) : null}>
        Page {trail.page}
      </Pager>
    </>
  );
}

export function DelayedTab({ connection, queue }: Where) {
  const [start, setStart] = useState(0);
  const { data, problem } = usePoll(`delayed ${connection} ${queue} ${start}`, (signal) =>
    get<{ jobs: DelayedRow[]; after: number | null }>(queuePath(connection, "/delayed"), { queue_name: queue, start }, signal),
  );
  if (!data) return <Pending problem={problem} />;
  return (
    <>
      {problem ? <Trouble problem={problem} /> : null}
      {data.jobs.length === 0 ? (
        <Empty title="Nothing is delayed">Jobs with a delay, retries and snoozes wait here until they are due.</Empty>
      ) : (
        <div className="cq-scroll">
          <table className="cq-table">
            <caption className="cq-hidden">Delayed jobs, soonest first</caption>
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
                  <td><JobId connection={connection} queue={queue} id={job.id} /></td>
                  <td>{job.name || <span className="cq-zero">–</span>}</td>
                  <td><When at={job.due_at} /></td>
                  <td className="cq-num">{job.attempt === null ? "–" : job.attempt + 1}</td>
                  <td className="cq-num"><When at={job.created_at} /></td>
                  <td className="cq-num">{size(job.size)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <Pager
        back={start > 0 ? () => setStart(Math.max(0, start - 50)) : null}
        next={data.after !== null ? () => setStart(data.after!) : null}
      />
    </>
  );
}

export function RepeatsTab({ connection, queue }: Where) {
  const { data, problem } = usePoll(`repeats ${connection} ${queue}`, (signal) =>
    get<{ repeats: RepeatRow[] }>(queuePath(connection, "/repeats"), { queue_name: queue }, signal),
  );
  if (!data) return <Pending problem={problem} />;
  if (data.repeats.length === 0) return <Empty title="Nothing repeats">Jobs that fire by a schedule stand here.</Empty>;
  return (
    <div className="cq-scroll">
      <table className="cq-table">
        <caption className="cq-hidden">Repeats, next fire first</caption>
        <thead>
          <tr>
            <th scope="col">Key</th>
            <th scope="col">Name</th>
            <th scope="col">Schedule</th>
            <th scope="col">Next</th>
            <th scope="col" className="cq-num">Fired</th>
            <th scope="col">If missed</th>
            <th scope="col">Ends</th>
          </tr>
        </thead>
        <tbody>
          {data.repeats.map((repeat) => (
            <tr key={repeat.key}>
              <td className="cq-id">{repeat.key}</td>
              <td>{repeat.name || <span className="cq-zero">–</span>}</td>
              <td>{repeat.schedule}</td>
              <td><When at={repeat.next_at} /></td>
              <td className="cq-num">
                {count(repeat.fired)}
                {repeat.limit ? ` of ${count(repeat.limit)}` : ""}
              </td>
              <td>{repeat.missed}</td>
              <td>{repeat.end_at ? <When at={repeat.end_at} /> : <span className="cq-zero">never</span>}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export function ConsumersTab({ connection, queue }: Where) {
  const { data, problem } = usePoll(`consumers ${connection} ${queue}`, (signal) =>
    get<{ groups: Group[] }>(queuePath(connection, "/consumers"), { queue_name: queue }, signal),
  );
  if (!data) return <Pending problem={problem} />;
  if (data.groups.length === 0) {
    return <Empty title="Nobody reads this queue yet">Start a worker: chasqui worker --queue {queue}</Empty>;
  }
  return (
    <>
      {data.groups.map((group) => (
        <section key={group.name} className="cq-group" aria-label={`Group ${group.name}`}>
          <header>
            <h3>{group.name}</h3>
            <span className="cq-mute-text">
              {group.workers ? "workers" : "group"} · {count(group.pending)} held · lag {count(group.lag)}
            </span>
          </header>
          {group.consumers.length === 0 ? (
            <p className="cq-note">It has no member right now.</p>
          ) : (
            <table className="cq-table">
              <caption className="cq-hidden">Members of {group.name}</caption>
              <thead>
                <tr>
                  <th scope="col">Consumer</th>
                  <th scope="col" className="cq-num">Holds</th>
                  <th scope="col" className="cq-num">Last sign</th>
                </tr>
              </thead>
              <tbody>
                {group.consumers.map((each) => (
                  <tr key={each.name}>
                    <td className="cq-id">{each.name}</td>
                    <td className="cq-num">{count(each.pending)}</td>
                    <td className="cq-num">{span(each.idle_ms)} ago</td>
                  </tr>
                ))}
              </tbody>
            </table>
          )}
          {group.total > group.consumers.length ? (
            <p className="cq-note">
              The {count(group.consumers.length)} liveliest of {count(group.total)}.
            </p>
          ) : null}
        </section>
      ))}
    </>
  );
}
