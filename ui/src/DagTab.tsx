// Tabs inside Airflow's own pages: what a DAG has sent, and what one task instance has.
import type { ReactNode } from "react";

import { get, queuePath } from "./api";
import { BatchCard } from "./BatchView";
import { count } from "./format";
import { JobCard } from "./JobView";
import { Bar, Empty, From, Pending, percent, To, Trouble, When } from "./parts";
import { usePoll } from "./poll";
import type { Batch, Job, SentLink } from "./types";

export function DagTab({ dagId, refresh }: { dagId: string; refresh: ReactNode }) {
  const { data, problem } = usePoll(`dag ${dagId}`, (signal) =>
    get<{ links: SentLink[] }>(`dags/${encodeURIComponent(dagId)}`, {}, signal),
  );
  return (
    <section className="cq-tab" aria-label="Jobs and batches of this DAG">
      <div className="cq-tools">
        <h1>Sent to Chasqui</h1>
        {refresh}
      </div>
      {problem && data ? <Trouble problem={problem} /> : null}
      {!data ? (
        <Pending problem={problem} />
      ) : data.links.length === 0 ? (
        <Empty title="Nothing sent yet">When a task of this DAG hands jobs to a queue, they are listed here.</Empty>
      ) : (
        <div className="cq-scroll">
          <table className="cq-table">
            <caption className="cq-hidden">What the tasks of this DAG sent, newest run first</caption>
            <thead>
              <tr>
                <th scope="col">Task</th>
                <th scope="col">Run</th>
                <th scope="col">Queue</th>
                <th scope="col">Sent</th>
                <th scope="col">Progress</th>
                <th scope="col" className="cq-num">Dead</th>
                <th scope="col" className="cq-num">When</th>
              </tr>
            </thead>
            <tbody>
              {data.links.map((link) => (
                <Sent key={`${link.run_id} ${link.task_id} ${link.map_index}`} link={link} />
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

function Sent({ link }: { link: SentLink }) {
  const where = { conn: link.connection, queue: link.queue };
  const progress = link.progress;
  return (
    <tr>
      <td><From origin={link} /></td>
      <td className="cq-id">{link.run_id}</td>
      <td><To place={where}>{link.queue}</To></td>
      <td>
        {link.batch ? (
          <To place={{ ...where, batch: link.batch }}>{progress ? `batch of ${count(progress.total ?? progress.sent)}` : "batch"}</To>
        ) : (
          <To place={{ ...where, job: link.job }}>one job</To>
        )}
      </td>
      <td>
        {progress ? (
          <span className="cq-inline"><Bar batch={progress} /> {percent(progress)}</span>
        ) : link.error ? (
          <span className="cq-bad-text cq-wrap">{link.error.message}</span>
        ) : (
          <span className="cq-zero">–</span>
        )}
      </td>
      <td className="cq-num">{progress ? progress.dead ? <b className="cq-bad-text">{count(progress.dead)}</b> : "0" : "–"}</td>
      <td className="cq-num"><When at={link.sent_at} /></td>
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
  const part = encodeURIComponent;
  const { data, problem } = usePoll(`task ${dagId} ${runId} ${taskId} ${mapIndex}`, (signal) =>
    get<{ links: SentLink[] }>(
      `dags/${part(dagId)}/runs/${part(runId)}/tasks/${part(taskId)}`,
      { map_index: mapIndex },
      signal,
    ),
  );
  const link = data?.links[0];
  return (
    <section className="cq-tab" aria-label="Job or batch of this task">
      {!data ? (
        <Pending problem={problem} />
      ) : link ? (
        <>
          <div className="cq-tools">
            <h1>{link.batch ? "Batch" : "Job"}</h1>
            <span className="cq-mute-text">
              on <To place={{ conn: link.connection, queue: link.queue }}>{link.queue}</To>, sent <When at={link.sent_at} />
            </span>
            {refresh}
          </div>
          {link.batch ? <OneBatch link={link} id={link.batch} /> : link.job ? <OneJob link={link} id={link.job} /> : null}
        </>
      ) : (
        <Empty title="This task sent nothing to Chasqui">
          Tasks that hand jobs to a queue, or wait for them, show them here.
        </Empty>
      )}
    </section>
  );
}

function OneBatch({ link, id }: { link: SentLink; id: string }) {
  const { data, problem } = usePoll(`batch ${link.connection} ${link.queue} ${id}`, (signal) =>
    get<Batch>(queuePath(link.connection, `/batches/${encodeURIComponent(id)}`), { queue_name: link.queue }, signal),
  );
  if (!data) return <Pending problem={problem} />;
  return (
    <>
      {problem ? <Trouble problem={problem} /> : null}
      <BatchCard connection={link.connection} queue={link.queue} batch={data} />
    </>
  );
}

function OneJob({ link, id }: { link: SentLink; id: string }) {
  const { data, problem } = usePoll(`job ${link.connection} ${link.queue} ${id}`, (signal) =>
    get<Job>(queuePath(link.connection, "/job"), { queue_name: link.queue, id }, signal),
  );
  if (!data) return <Pending problem={problem} />;
  return (
    <>
      {problem ? <Trouble problem={problem} /> : null}
      <JobCard connection={link.connection} queue={link.queue} job={data} />
    </>
  );
}
