// Batches: a list with progress bars, and one batch with its dead jobs.
import { useDeferredValue, useState } from "react";

import { get, queuePath } from "./api";
import { count } from "./format";
import { JobId, type Where } from "./lists";
import { Bar, Empty, Facts, From, Pager, Pending, percent, To, Trouble, When } from "./parts";
import { usePoll } from "./poll";
import type { Batch } from "./types";

const LIMIT = 25;

export function BatchesTab({ connection, queue }: Where) {
  const [search, setSearch] = useState("");
  const [page, setPage] = useState(0);
  const wanted = useDeferredValue(search);
  const { data, problem } = usePoll(`batches ${connection} ${queue} ${wanted} ${page}`, (signal) =>
    get<{ batches: Batch[]; total: number; complete: boolean }>(
      queuePath(connection, "/batches"),
      { queue_name: queue, search: wanted, page, limit: LIMIT },
      signal,
    ),
  );
  return (
    <>
      <div className="cq-filters">
        <input
          type="search"
          value={search}
          placeholder="Find a batch"
          aria-label="Find a batch"
          onChange={(event) => {
            setSearch(event.target.value);
            setPage(0);
          }}
        />
        {data && !data.complete ? <span className="cq-note">Still looking among the keys of the server.</span> : null}
      </div>
      {problem && data ? <Trouble problem={problem} /> : null}
      {!data ? (
        <Pending problem={problem} />
      ) : data.batches.length === 0 ? (
        <Empty title={wanted ? "No batch has this in its name" : "No batch"}>
          {wanted ? null : "Jobs that are handed off together and awaited together stand here, for 30 days."}
        </Empty>
      ) : (
        <div className="cq-scroll">
          <table className="cq-table cq-batches">
            <caption className="cq-hidden">Batches, newest first</caption>
            <thead>
              <tr>
                <th scope="col">Batch</th>
                <th scope="col">Progress</th>
                <th scope="col" className="cq-num">Settled</th>
                <th scope="col" className="cq-num">Dead</th>
                <th scope="col" className="cq-num">Total</th>
                <th scope="col">Sent by</th>
                <th scope="col" className="cq-num">Created</th>
              </tr>
            </thead>
            <tbody>
              {data.batches.map((batch) => (
                <tr key={batch.id}>
                  <td className="cq-id"><To place={{ conn: connection, queue, batch: batch.id }}>{batch.id}</To></td>
                  <td><Bar batch={batch} /></td>
                  <td className="cq-num">{percent(batch)}</td>
                  <td className="cq-num">{batch.dead ? <b className="cq-bad-text">{count(batch.dead)}</b> : <span className="cq-zero">0</span>}</td>
                  <td className="cq-num">{batch.total === null ? `${count(batch.sent)}+` : count(batch.total)}</td>
                  <td><From origin={batch.origin} /></td>
                  <td className="cq-num"><When at={batch.created_at} /></td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      <Pager
        back={page > 0 ? () => setPage(page - 1) : null}
        next={data && (page + 1) * LIMIT < data.total ? () => setPage(page + 1) : null}
      >
        {data ? `${count(data.total)} ${data.total === 1 ? "batch" : "batches"}` : ""}
      </Pager>
    </>
  );
}

export function BatchView({ connection, queue, id }: Where & { id: string }) {
  const { data, problem } = usePoll(`batch ${connection} ${queue} ${id}`, (signal) =>
    get<Batch>(queuePath(connection, `/batches/${encodeURIComponent(id)}`), { queue_name: queue }, signal),
  );
  return (
    <>
      <div className="cq-tools">
        <h1 className="cq-id">{id}</h1>
      </div>
      {problem && data ? <Trouble problem={problem} /> : null}
      {data ? <BatchCard connection={connection} queue={queue} batch={data} /> : <Pending problem={problem} />}
    </>
  );
}

export function BatchCard({ connection, queue, batch }: Where & { batch: Batch }) {
  const tone = batch.finished ? (batch.dead ? "bad" : "ok") : "run";
  const words = batch.finished ? (batch.dead ? "ended with dead jobs" : "done") : batch.total === null ? "being sent" : "under way";
  return (
    <section className="cq-card cq-batch" aria-label={`Batch ${batch.id}`}>
      <div className="cq-big">
        <b>{percent(batch)}</b>
        <span className={`cq-state cq-${tone}`}>{words}</span>
      </div>
      <Bar batch={batch} />
      <Facts
        facts={[
          ["Total", batch.total === null ? `${count(batch.sent)} so far` : count(batch.total)],
          ["Done", count(batch.done)],
          ["Dead", batch.dead ? <b className="cq-bad-text">{count(batch.dead)}</b> : "0"],
          ["Left", batch.total === null ? null : count(Math.max(0, batch.total - batch.done - batch.dead))],
          ["Parts", batch.parts > 1 ? count(batch.parts) : null],
          ["Created", <When key="created" at={batch.created_at} />],
          ["Sent by", batch.origin ? <From key="from" origin={batch.origin} /> : batch.source],
        ]}
      />
      {batch.dead_ids?.length ? (
        <>
          <h3>Dead jobs</h3>
          <p className="cq-note">
            <To place={{ conn: connection, queue, tab: "letters", in: batch.id }}>See and replay the letters of this batch</To>
          </p>
          <ul className="cq-ids">
            {batch.dead_ids.map((each) => (
              <li key={each}><JobId connection={connection} queue={queue} id={each} /></li>
            ))}
          </ul>
          {batch.dead > batch.dead_ids.length ? <p className="cq-note">The first {batch.dead_ids.length} of {count(batch.dead)}.</p> : null}
        </>
      ) : null}
    </section>
  );
}
