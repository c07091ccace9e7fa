// One job: its state, payload, result, events and the task that enqueued it.
import { ActionButton } from "./ActionButton";
import { get, queuePath } from "./api";
import {
  BatchProgressBar,
  CodeBlock,
  ErrorNotice,
  ErrorText,
  FactList,
  formatProgress,
  JobState,
  LoadingOrError,
  PageLink,
  TaskLink,
  Timestamp,
  type QueueRef,
} from "./components";
import { formatDateTime, formatDuration, formatMicroseconds } from "./format";
import { usePoll } from "./polling";
import type { Job, JobEvent } from "./types";

export function JobView({ connection, queue, id }: QueueRef & { id: string }) {
  return (
    <>
      <div className="cq-toolbar">
        <h1 className="cq-id">{id}</h1>
      </div>
      <JobPanel connection={connection} queue={queue} id={id} />
    </>
  );
}

export function JobPanel({ connection, queue, id }: QueueRef & { id: string }) {
  const { data, problem } = usePoll(`job ${connection} ${queue} ${id}`, (signal) =>
    get<Job>(queuePath(connection, "/job"), { queue_name: queue, job_id: id }, signal),
  );
  if (!data) return <LoadingOrError problem={problem} />;
  return (
    <>
      {problem ? <ErrorNotice problem={problem} /> : null}
      <JobCard connection={connection} queue={queue} job={data} />
    </>
  );
}

function JobCard({ connection, queue, job }: QueueRef & { job: Job }) {
  const batch = job.batch;
  const deadLetter = job.dead_letter;
  const deadLetterParams = { conn: connection, queue, tab: "dead-letters", dead_letter: deadLetter?.id };
  return (
    <div className="cq-job">
      <section className="cq-card" aria-label="Details">
        {job.state === "unknown" ? (
          <p className="cq-note">
            {job.search_truncated
              ? "The job was not found in the part of the queue that was searched. It may still exist."
              : "The job was not found. It may have finished long ago, or it never existed."}
          </p>
        ) : null}
        <FactList
          facts={[
            ["State", <JobState key="state" state={job.state} />],
            ["Name", job.name],
            ["Attempt", job.attempt],
            ["Created", job.created_at ? <Timestamp key="created" at={job.created_at} /> : null],
            ["Due", job.due_at ? <Timestamp key="due" at={job.due_at} /> : null],
            ["Reason", job.reason ? <span key="reason" className="cq-reason">{job.reason}</span> : null],
            ["Enqueued by", job.origin ? <TaskLink key="task" origin={job.origin} /> : null],
            ["Progress", job.progress === null ? null : <code key="progress">{JSON.stringify(job.progress)}</code>],
            ["Dead letter", deadLetter ? <PageLink key="dead-letter" params={deadLetterParams}>Open</PageLink> : null],
          ]}
        />
        {job.can_edit && ["waiting", "running", "delayed"].includes(job.state) ? (
          <ActionButton
            danger
            label="Cancel job"
            title="Cancel job"
            path={queuePath(connection, "/job/cancel")}
            params={{ queue_name: queue, job_id: job.id }}
            body={{}}
            describeResult={(result) => CANCEL_RESULTS[result] ?? result}
          >
            <p>
              Job <b className="cq-id">{job.id}</b> will not run, or is interrupted if it is running. This cannot be undone.
            </p>
          </ActionButton>
        ) : null}
        {batch ? (
          <div className="cq-job-batch">
            <span>
              Batch <PageLink params={{ conn: connection, queue, batch: batch.id }}>{batch.id}</PageLink>{" "}
              {formatProgress(batch)} finished
            </span>
            <BatchProgressBar batch={batch} />
          </div>
        ) : null}
        {deadLetter?.error ? <ErrorText text={deadLetter.error} /> : null}
        {job.payload ? <h3>Payload</h3> : null}
        <CodeBlock content={job.payload} label="Payload" />
        {job.result ? <h3>Result</h3> : null}
        <CodeBlock content={job.result} label="Result" />
      </section>
      <section className="cq-card" aria-label="Timeline">
        <h2>Timeline</h2>
        <Timeline job={job} />
      </section>
    </div>
  );
}

const CANCEL_RESULTS: Record<string, string> = {
  cancelled: "The job is cancelled.",
  requested: "Workers were told to skip or interrupt the job. They notice it within about a second.",
};

const EVENTS: Record<string, { label: string; tone: string }> = {
  waiting: { label: "Enqueued", tone: "muted" },
  delayed: { label: "Delayed", tone: "muted" },
  active: { label: "Started", tone: "running" },
  completed: { label: "Done", tone: "ok" },
  failed: { label: "Failed", tone: "bad" },
  "retry-scheduled": { label: "Retry scheduled", tone: "warn" },
  dlq: { label: "Dead", tone: "bad" },
};

function Timeline({ job }: { job: Job }) {
  const createdAt = job.created_at;
  return (
    <ol className="cq-timeline">
      {createdAt ? (
        <li className="cq-muted">
          <b>Created</b>
          <time>{formatDateTime(createdAt)}</time>
        </li>
      ) : null}
      {job.events.map((event) => (
        <TimelineEntry key={event.entry_id} event={event} createdAt={createdAt} />
      ))}
      {job.events.length === 0 ? <li className="cq-muted"><span>No events of this job are stored.</span></li> : null}
      {job.more_events ? (
        <li className="cq-muted"><span>There may be more events. Only a part of the events stream was searched.</span></li>
      ) : null}
    </ol>
  );
}

function TimelineEntry({ event, createdAt }: { event: JobEvent; createdAt: number | null }) {
  const { label, tone } = EVENTS[event.name] ?? { label: event.name, tone: "muted" };
  const details = [
    event.attempt ? `attempt ${event.attempt}` : null,
    event.duration_us !== null ? `took ${formatMicroseconds(event.duration_us)}` : null,
    event.backoff_ms !== null ? `in ${formatDuration(event.backoff_ms)}` : null,
    event.delay_ms !== null ? `for ${formatDuration(event.delay_ms)}` : null,
    event.reason,
  ].filter(Boolean);
  const time = formatDateTime(event.ts_ms);
  return (
    <li className={`cq-${tone}`}>
      <b>{label}</b>
      <span>{details.join(" · ")}</span>
      <time title={time}>{createdAt ? `+${formatDuration(event.ts_ms - createdAt)}` : time}</time>
    </li>
  );
}
