// One job: where it is, what it carries, what happened to it, and who sent it.
import { get, queuePath } from "./api";
import { micros, span, whole } from "./format";
import type { Where } from "./lists";
import { Bar, Code, Facts, From, Pending, percent, State, To, Trouble, When } from "./parts";
import { usePoll } from "./poll";
import type { Event, Job } from "./types";

export function JobView({ connection, queue, id }: Where & { id: string }) {
  const { data, problem } = usePoll(`job ${connection} ${queue} ${id}`, (signal) =>
    get<Job>(queuePath(connection, "/job"), { queue_name: queue, id }, signal),
  );
  return (
    <>
      <div className="cq-tools">
        <h1 className="cq-id">{id}</h1>
        {data ? <State state={data.state} /> : null}
      </div>
      {problem && data ? <Trouble problem={problem} /> : null}
      {data ? <JobCard connection={connection} queue={queue} job={data} /> : <Pending problem={problem} />}
    </>
  );
}

export function JobCard({ connection, queue, job }: Where & { job: Job }) {
  const batch = job.batch;
  return (
    <div className="cq-job">
      <section className="cq-card" aria-label="Facts">
        {job.state === "unknown" ? (
          <p className="cq-note">
            {job.gave_up
              ? "The queue is too deep to find this job in the time the page has. It may well be there."
              : "No trace of this job is left: it was done and its events are trimmed away, or it was never here."}
          </p>
        ) : null}
        <Facts
          facts={[
            ["State", <State key="state" state={job.state} />],
            ["Name", job.name],
            ["Attempt", job.attempt === null ? null : job.attempt + 1],
            ["Created", job.created_at ? <When key="created" at={job.created_at} /> : null],
            ["Due", job.due_at ? <When key="due" at={job.due_at} /> : null],
            ["Reason", job.reason ? <span key="reason" className="cq-reason">{job.reason}</span> : null],
            ["Sent by", job.origin ? <From key="from" origin={job.origin} /> : null],
            ["Progress", job.progress === null ? null : <code key="progress">{JSON.stringify(job.progress)}</code>],
            ["Letter", job.letter ? <To key="dead_letter" place={{ conn: connection, queue, tab: "letters", letter: job.letter.id }}>Open the letter</To> : null],
          ]}
        />
        {batch ? (
          <div className="cq-in-batch">
            <span>
              Batch <To place={{ conn: connection, queue, batch: batch.id }}>{batch.id}</To> {percent(batch)}
            </span>
            <Bar batch={batch} />
          </div>
        ) : null}
        {job.letter?.error ? (
          <>
            <h3>Error</h3>
            <pre className="cq-code cq-code-bad" tabIndex={0} aria-label="Error">{job.letter.error}</pre>
          </>
        ) : null}
        {job.payload ? <h3>Payload</h3> : null}
        <Code text={job.payload} label="Payload" />
        {job.result ? <h3>Result</h3> : null}
        <Code text={job.result} label="Result" />
      </section>
      <section className="cq-card" aria-label="Timeline">
        <h2>Timeline</h2>
        <Timeline job={job} />
      </section>
    </div>
  );
}

const WORDS: Record<string, string> = {
  waiting: "Added",
  delayed: "Delayed",
  active: "Started",
  completed: "Completed",
  failed: "Failed",
  "retry-scheduled": "Will be tried again",
  dlq: "Died",
};

function Timeline({ job }: { job: Job }) {
  const first = job.created_at;
  return (
    <ol className="cq-timeline">
      {first ? (
        <li className="cq-mute">
          <b>Created</b>
          <time title={whole(first)}>{whole(first)}</time>
        </li>
      ) : null}
      {job.events.map((event) => (
        <Entry key={event.entry_id} event={event} first={first} />
      ))}
      {job.events.length === 0 ? <li className="cq-mute"><span>No events are kept of it.</span></li> : null}
      {job.more_events ? <li className="cq-mute"><span>There may be more: the events stream is longer than what was looked at.</span></li> : null}
    </ol>
  );
}

function Entry({ event, first }: { event: Event; first: number | null }) {
  const tones: Record<string, string> = { completed: "ok", dlq: "bad", failed: "bad", active: "run", "retry-scheduled": "warn" };
  const notes = [
    event.attempt ? `attempt ${event.attempt}` : null,
    event.duration_us !== null ? `took ${micros(event.duration_us)}` : null,
    event.backoff_ms !== null ? `in ${span(event.backoff_ms)}` : null,
    event.delay_ms !== null ? `for ${span(event.delay_ms)}` : null,
    event.reason,
  ].filter(Boolean);
  return (
    <li className={`cq-${tones[event.name] ?? "mute"}`}>
      <b>{WORDS[event.name] ?? event.name}</b>
      <span>{notes.join(" · ")}</span>
      <time title={whole(event.ts_ms)}>{first ? `+${span(event.ts_ms - first)}` : whole(event.ts_ms)}</time>
    </li>
  );
}
