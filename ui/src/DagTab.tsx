// Tabs in Airflow's own pages: what a DAG enqueued, and what one task instance enqueued.
import type { ReactNode } from "react";

import { get } from "./api";
import { BatchPanel } from "./BatchView";
import {
  BatchProgressBar,
  Dash,
  DeadCount,
  EmptyState,
  ErrorNotice,
  formatProgress,
  LoadingOrError,
  PageLink,
  TaskLink,
  Timestamp,
} from "./components";
import { formatCount } from "./format";
import { JobPanel } from "./JobView";
import { usePoll } from "./polling";
import type { SentLink } from "./types";

export function DagTab({ dagId, refresh }: { dagId: string; refresh: ReactNode }) {
  const { data, problem } = usePoll(`dag ${dagId}`, (signal) =>
    get<{ links: SentLink[] }>(`dags/${encodeURIComponent(dagId)}`, {}, signal),
  );
  return (
    <section className="cq-tab" aria-label="Jobs and batches of this DAG">
      <div className="cq-toolbar">
        <h1>Enqueued jobs and batches</h1>
        {refresh}
      </div>
      {problem && data ? <ErrorNotice problem={problem} /> : null}
      {!data ? (
        <LoadingOrError problem={problem} />
      ) : data.links.length === 0 ? (
        <EmptyState title="No jobs yet">Jobs and batches that tasks of this DAG enqueue appear here.</EmptyState>
      ) : (
        <div className="cq-scroll">
          <table className="cq-table">
            <caption className="cq-hidden">Jobs and batches of this DAG, newest run first</caption>
            <thead>
              <tr>
                <th scope="col">Task</th>
                <th scope="col">Run</th>
                <th scope="col">Queue</th>
                <th scope="col">Enqueued</th>
                <th scope="col">Progress</th>
                <th scope="col" className="cq-num">Dead</th>
                <th scope="col" className="cq-num">Time</th>
              </tr>
            </thead>
            <tbody>
              {data.links.map((link) => (
                <SentRow key={`${link.run_id} ${link.task_id} ${link.map_index}`} link={link} />
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

function SentRow({ link }: { link: SentLink }) {
  const params = { conn: link.connection, queue: link.queue };
  const batch = link.progress;
  return (
    <tr>
      <td><TaskLink origin={link} /></td>
      <td className="cq-id">{link.run_id}</td>
      <td><PageLink params={params}>{link.queue}</PageLink></td>
      <td>
        {link.batch_id ? (
          <PageLink params={{ ...params, batch: link.batch_id }}>
            {batch ? `batch of ${formatCount(batch.total ?? batch.enqueued)}` : "batch"}
          </PageLink>
        ) : (
          <PageLink params={{ ...params, job: link.job_id }}>1 job</PageLink>
        )}
      </td>
      <td>
        {batch ? (
          <span className="cq-inline"><BatchProgressBar batch={batch} /> {formatProgress(batch)}</span>
        ) : link.error ? (
          <span className="cq-bad-text cq-wrap">{link.error.message}</span>
        ) : (
          <Dash />
        )}
      </td>
      <td className="cq-num">{batch ? <DeadCount count={batch.dead} /> : <Dash />}</td>
      <td className="cq-num"><Timestamp at={link.sent_at} /></td>
    </tr>
  );
}

export function TaskTab({ dagId, runId, taskId, mapIndex, refresh }: {
  dagId: string;
  runId: string;
  taskId: string;
  mapIndex: string;
  refresh: ReactNode;
}) {
  const encode = encodeURIComponent;
  const { data, problem } = usePoll(`task ${dagId} ${runId} ${taskId} ${mapIndex}`, (signal) =>
    get<{ links: SentLink[] }>(
      `dags/${encode(dagId)}/runs/${encode(runId)}/tasks/${encode(taskId)}`,
      { map_index: mapIndex },
      signal,
    ),
  );
  const link = data?.links[0];
  return (
    <section className="cq-tab" aria-label="Job or batch of this task">
      {!data ? (
        <LoadingOrError problem={problem} />
      ) : link ? (
        <>
          <div className="cq-toolbar">
            <h1>{link.batch_id ? "Batch" : "Job"}</h1>
            <span className="cq-soft">
              in queue <PageLink params={{ conn: link.connection, queue: link.queue }}>{link.queue}</PageLink>, enqueued{" "}
              <Timestamp at={link.sent_at} />
            </span>
            {refresh}
          </div>
          {link.batch_id ? (
            <BatchPanel connection={link.connection} queue={link.queue} id={link.batch_id} />
          ) : link.job_id ? (
            <JobPanel connection={link.connection} queue={link.queue} id={link.job_id} />
          ) : null}
        </>
      ) : (
        <EmptyState title="This task enqueued no jobs">
          Jobs and batches that a task enqueues or waits for appear here.
        </EmptyState>
      )}
    </section>
  );
}
