// Every connection with its health, every queue with its numbers.
import { useDeferredValue, useState } from "react";

import { get } from "./api";
import { Spark } from "./charts";
import { count, short, size, span } from "./format";
import { Empty, Pager, Pending, To, Trouble } from "./parts";
import { usePoll } from "./poll";
import type { Connection, Health, Overview, QueueRow } from "./types";

export function OverviewPage() {
  const [search, setSearch] = useState("");
  const [page, setPage] = useState(0);
  const wanted = useDeferredValue(search);
  const { data, problem } = usePoll(`overview ${wanted} ${page}`, (signal) =>
    get<Overview>("overview", { search: wanted, page }, signal),
  );
  const most = Math.max(0, ...(data?.connections ?? []).map((each) => each.total));
  const size = data?.page_size ?? 50;
  return (
    <>
      <div className="cq-tools">
        <h1>Queues</h1>
        <input
          type="search"
          value={search}
          placeholder="Find a queue"
          aria-label="Find a queue"
          onChange={(event) => {
            setSearch(event.target.value);
            setPage(0);
          }}
        />
      </div>
      {problem && data ? <Trouble problem={problem} /> : null}
      {data ? (
        <>
          {data.connections.map((each) => (
            <ConnectionCard key={each.id} connection={each} search={wanted} />
          ))}
          {data.connections.length === 0 ? (
            <Empty title="No connection yet">
              Make an Airflow connection of type Chasqui, or name one in the option connections of the section
              [chasqui].
            </Empty>
          ) : null}
          {most > size ? (
            <Pager
              back={page > 0 ? () => setPage(page - 1) : null}
              next={(page + 1) * size < most ? () => setPage(page + 1) : null}
            >
              Page {page + 1} of {Math.ceil(most / size)}
            </Pager>
          ) : null}
        </>
      ) : (
        <Pending problem={problem} />
      )}
    </>
  );
}

export function HealthLine({ health }: { health: Health }) {
  return (
    <p className="cq-health">
      <i className={health.ok ? "cq-dot cq-ok" : "cq-dot cq-bad"} aria-hidden="true" />
      <span className="cq-hidden">{health.ok ? "reachable" : "not reachable"}</span>
      <span>{health.where ?? "no address"}</span>
      {health.version ? <span>{health.version}</span> : null}
      {health.dialect ? <span>{health.dialect} dialect</span> : null}
      {health.latency_ms !== undefined ? <span>{health.latency_ms} ms</span> : null}
      {health.memory ? (
        <span>
          {size(health.memory)}
          {health.memory_max ? ` of ${size(health.memory_max)}` : ""}
        </span>
      ) : null}
    </p>
  );
}

function ConnectionCard({ connection, search }: { connection: Connection; search: string }) {
  return (
    <section className="cq-card" aria-label={`Connection ${connection.id}`}>
      <header>
        <h2>{connection.id}</h2>
        <HealthLine health={connection} />
      </header>
      {connection.error ? <Trouble problem={connection.error} /> : null}
      {connection.warning ? <p className="cq-warning">{connection.warning}</p> : null}
      {connection.queues.length ? (
        <Queues connection={connection.id} queues={connection.queues} />
      ) : connection.ok ? (
        <Empty title={search ? "No queue has this in its name" : "No queue yet"}>
          {search ? null : "A queue is here as soon as something was added to it."}
        </Empty>
      ) : null}
      {!connection.complete ? <p className="cq-note">Still looking for queues among the keys of this server.</p> : null}
    </section>
  );
}

function Queues({ connection, queues }: { connection: string; queues: QueueRow[] }) {
  return (
    <div className="cq-scroll">
      <table className="cq-table">
        <caption className="cq-hidden">Queues of {connection}</caption>
        <thead>
          <tr>
            <th scope="col">Queue</th>
            <th scope="col" className="cq-num">Waiting</th>
            <th scope="col" className="cq-num">Running</th>
            <th scope="col" className="cq-num">Delayed</th>
            <th scope="col" className="cq-num">Dead</th>
            <th scope="col" className="cq-num" title="What the workers have not read yet">Lag</th>
            <th scope="col" className="cq-num">Oldest</th>
            <th scope="col" className="cq-num" title="Jobs added per second, over the last minute">In / s</th>
            <th scope="col" className="cq-num" title="Jobs completed per minute, over the last five minutes">Done / min</th>
            <th scope="col">Last 30 min</th>
          </tr>
        </thead>
        <tbody>
          {queues.map((queue) =>
            queue.error ? (
              <tr key={queue.name}>
                <th scope="row">{queue.name}</th>
                <td colSpan={9} className="cq-bad-text">
                  {queue.error.message}
                </td>
              </tr>
            ) : (
              <Row key={queue.name} connection={connection} queue={queue} />
            ),
          )}
        </tbody>
      </table>
    </div>
  );
}

function Row({ connection, queue }: { connection: string; queue: QueueRow }) {
  const place = { conn: connection, queue: queue.name };
  const recent = queue.beats.slice(-5);
  const done = recent.reduce((sum, beat) => sum + beat.completed, 0) / Math.max(1, recent.length);
  return (
    <tr>
      <th scope="row">
        <To place={place}>{queue.name}</To>
      </th>
      <Num value={queue.waiting} />
      <Num value={queue.running} />
      <Num value={queue.delayed} />
      <td className="cq-num">
        {queue.dead ? (
          <span className="cq-dead">
            <To place={{ ...place, tab: "letters" }} label={`${queue.dead} dead letters of ${queue.name}`}>
              {count(queue.dead)}
            </To>
          </span>
        ) : (
          <span className="cq-zero">0</span>
        )}
      </td>
      <Num value={queue.lag} />
      <td className="cq-num">{queue.oldest_ms === null ? <span className="cq-zero">–</span> : span(queue.oldest_ms)}</td>
      <td className="cq-num">{queue.added_per_s ? short(queue.added_per_s) : <span className="cq-zero">–</span>}</td>
      <td className="cq-num">{done ? short(done) : <span className="cq-zero">0</span>}</td>
      <td>
        <Spark beats={queue.beats} />
      </td>
    </tr>
  );
}

function Num({ value }: { value: number | null }) {
  return <td className="cq-num">{value ? count(value) : <span className="cq-zero">{value === 0 ? 0 : "–"}</span>}</td>;
}
