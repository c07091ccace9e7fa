// The list of batches with progress bars, and one batch with its dead jobs.
import { useDeferredValue, useState } from "react";

import { ActionButton } from "./ActionButton";
import { get, queuePath } from "./api";
import {
  BatchProgressBar,
  DeadCount,
  EmptyState,
  ErrorNotice,
  FactList,
  formatProgress,
  JobLink,
  LoadingOrError,
  PageLink,
  Pager,
  TaskLink,
  Timestamp,
  type QueueRef,
} from "./components";
import { formatCount } from "./format";
import { usePoll } from "./polling";
import type { Batch } from "./types";

const PAGE_SIZE = 25;

export function BatchesTab({ connection, queue }: QueueRef) {
  const [searchInput, setSearchInput] = useState("");
  const [page, setPage] = useState(0);
  const search = useDeferredValue(searchInput);
  const { data, problem } = usePoll(`batches ${connection} ${queue} ${search} ${page}`, (signal) =>
    get<{ batches: Batch[]; total: number; complete: boolean }>(
      queuePath(connection, "/batches"),
      { queue_name: queue, search, page, limit: PAGE_SIZE },
      signal,
    ),
  );
  return (
    <>
      <div className="cq-filters">
        <input
          type="search"
          value={searchInput}
          placeholder="Search batches"
          aria-label="Search batches"
          onChange={(event) => {
            setSearchInput(event.target.value);
            setPage(0);
          }}
        />
        {data && !data.complete ? <span className="cq-note">Still scanning the keys of the server.</span> : null}
      </div>
      {problem && data ? <ErrorNotice problem={problem} /> : null}
      {!data ? (
        <LoadingOrError problem={problem} />
      ) : data.batches.length === 0 ? (
        <EmptyState title={search ? "No matching batches" : "No batches"}>
          {search ? null : "Batches appear here until their TTL ends, 30 days by default."}
        </EmptyState>
      ) : (
        <div className="cq-scroll">
          <table className="cq-table cq-batches">
            <caption className="cq-hidden">Batches, newest first</caption>
            <thead>
              <tr>
                <th scope="col">Batch</th>
                <th scope="col">Progress</th>
                <th scope="col" className="cq-num">Finished</th>
                <th scope="col" className="cq-num">Dead</th>
                <th scope="col" className="cq-num">Total</th>
                <th scope="col">Enqueued by</th>
                <th scope="col" className="cq-num">Created</th>
              </tr>
            </thead>
            <tbody>
              {data.batches.map((batch) => (
                <tr key={batch.id}>
                  <td className="cq-id"><PageLink params={{ conn: connection, queue, batch: batch.id }}>{batch.id}</PageLink></td>
                  <td><BatchProgressBar batch={batch} /></td>
                  <td className="cq-num">{formatProgress(batch)}</td>
                  <td className="cq-num"><DeadCount count={batch.dead} /></td>
                  <td className="cq-num">{batch.total === null ? `${formatCount(batch.enqueued)}+` : formatCount(batch.total)}</td>
                  <td><TaskLink origin={batch.origin} /></td>
                  <td className="cq-num"><Timestamp at={batch.created_at} /></td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <Pager
        onPrevious={page > 0 ? () => setPage(page - 1) : null}
        onNext={data && (page + 1) * PAGE_SIZE < data.total ? () => setPage(page + 1) : null}
      >
        {data ? `${formatCount(data.total)} ${data.total === 1 ? "batch" : "batches"}` : ""}
      </Pager>
    </>
  );
}

export function BatchView({ connection, queue, id }: QueueRef & { id: string }) {
  return (
    <>
      <div className="cq-toolbar">
        <h1 className="cq-id">{id}</h1>
      </div>
      <BatchPanel connection={connection} queue={queue} id={id} />
    </>
  );
}

export function BatchPanel({ connection, queue, id }: QueueRef & { id: string }) {
  const { data, problem } = usePoll(`batch ${connection} ${queue} ${id}`, (signal) =>
    get<Batch>(queuePath(connection, `/batches/${encodeURIComponent(id)}`), { queue_name: queue }, signal),
  );
  if (!data) return <LoadingOrError problem={problem} />;
  return (
    <>
      {problem ? <ErrorNotice problem={problem} /> : null}
      <BatchCard connection={connection} queue={queue} batch={data} />
    </>
  );
}

function BatchCard({ connection, queue, batch }: QueueRef & { batch: Batch }) {
  const [tone, state] = describeState(batch);
  const remaining = batch.total === null ? null : Math.max(0, batch.total - batch.done - batch.dead);
  return (
    <section className="cq-card cq-batch" aria-label={`Batch ${batch.id}`}>
      <div className="cq-headline">
        <b>{formatProgress(batch)}</b>
        <span className={`cq-state cq-${tone}`}>{state}</span>
        {batch.can_edit && !batch.finished && batch.cancelled_at === null ? (
          <CancelBatchButton connection={connection} queue={queue} batch={batch} />
        ) : null}
      </div>
      <BatchProgressBar batch={batch} />
      <FactList
        facts={[
          ["Total", batch.total === null ? `${formatCount(batch.enqueued)} so far` : formatCount(batch.total)],
          ["Done", formatCount(batch.done)],
          ["Dead", <DeadCount key="dead" count={batch.dead} />],
          [batch.cancelled_at === null ? "Remaining" : "Not run", remaining === null ? null : formatCount(remaining)],
          ["Cancelled", batch.cancelled_at === null ? null : <Timestamp key="cancelled" at={batch.cancelled_at} />],
          ["Parts", batch.parts > 1 ? formatCount(batch.parts) : null],
          ["Created", <Timestamp key="created" at={batch.created_at} />],
          ["Enqueued by", batch.origin ? <TaskLink key="task" origin={batch.origin} /> : batch.source],
        ]}
      />
      {batch.dead_job_ids?.length ? (
        <>
          <h3>Dead jobs</h3>
          <p className="cq-note">
            <PageLink params={{ conn: connection, queue, tab: "dead-letters", in_batch: batch.id }}>
              Show and replay the dead letters of this batch
            </PageLink>
          </p>
          <ul className="cq-ids">
            {batch.dead_job_ids.map((jobId) => (
              <li key={jobId}><JobLink connection={connection} queue={queue} id={jobId} /></li>
            ))}
          </ul>
          {batch.dead > batch.dead_job_ids.length ? (
            <p className="cq-note">The first {batch.dead_job_ids.length} of {formatCount(batch.dead)} dead jobs.</p>
          ) : null}
        </>
      ) : null}
    </section>
  );
}

const CANCEL_RESULTS: Record<string, string> = {
  cancelled: "The batch is cancelled. Workers drop its unfinished jobs within about a second.",
  already_cancelled: "The batch was cancelled before.",
  finished: "Every job of the batch had finished before.",
};

function CancelBatchButton({ connection, queue, batch }: QueueRef & { batch: Batch }) {
  const unfinished = (batch.total ?? batch.enqueued) - batch.done - batch.dead;
  return (
    <ActionButton
      danger
      label="Cancel batch"
      title="Cancel batch"
      path={queuePath(connection, `/batches/${encodeURIComponent(batch.id)}/cancel`)}
      params={{ queue_name: queue }}
      body={{}}
      describeResult={(result) => CANCEL_RESULTS[result] ?? result}
    >
      <p>
        {formatCount(unfinished)} unfinished jobs of batch <b className="cq-id">{batch.id}</b> will not run, and running ones are
        interrupted. This cannot be undone.
      </p>
    </ActionButton>
  );
}

function describeState(batch: Batch): [tone: string, text: string] {
  if (batch.cancelled_at !== null) return ["muted", "cancelled"];
  if (batch.finished) return batch.dead ? ["bad", `finished, ${formatCount(batch.dead)} dead`] : ["ok", "finished"];
  return ["running", batch.total === null ? "enqueueing" : "running"];
}
