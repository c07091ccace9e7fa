// All connections with their health, and all queues with their depth and throughput.
import { useDeferredValue, useState } from "react";

import { get } from "./api";
import { Sparkline } from "./charts";
import { Dash, EmptyState, ErrorNotice, LoadingOrError, PageLink, Pager } from "./components";
import { formatCount, formatDuration, formatShort, formatSize } from "./format";
import { usePoll } from "./polling";
import type { Connection, Health, Overview, QueueRow } from "./types";

const RECENT_MINUTES = 5;

export function OverviewPage() {
  const [searchInput, setSearchInput] = useState("");
  const [page, setPage] = useState(0);
  const search = useDeferredValue(searchInput);
  const { data, problem } = usePoll(`overview ${search} ${page}`, (signal) =>
    get<Overview>("overview", { search, page }, signal),
  );
  const maxQueues = Math.max(0, ...(data?.connections ?? []).map((connection) => connection.total));
  const pageSize = data?.page_size ?? 50;
  return (
    <>
      <div className="cq-toolbar">
        <h1>Queues</h1>
        <input
          type="search"
          value={searchInput}
          placeholder="Search queues"
          aria-label="Search queues"
          onChange={(event) => {
            setSearchInput(event.target.value);
            setPage(0);
          }}
        />
      </div>
      {problem && data ? <ErrorNotice problem={problem} /> : null}
      {data ? (
        <>
          {data.connections.map((connection) => (
            <ConnectionCard key={connection.id} connection={connection} search={search} />
          ))}
          {data.hidden_connections ? (
            <p className="cq-note">
              {data.hidden_connections === 1 ? "1 connection is" : `${data.hidden_connections} connections are`} not
              shown, because you do not have permission to read {data.hidden_connections === 1 ? "it" : "them"}.
            </p>
          ) : null}
          {data.connections.length === 0 && !data.hidden_connections ? (
            <EmptyState title="No connections">
              Create an Airflow connection of type Chasqui, or set the option connections in the section [chasqui].
            </EmptyState>
          ) : null}
          {maxQueues > pageSize ? (
            <Pager
              onPrevious={page > 0 ? () => setPage(page - 1) : null}
              onNext={(page + 1) * pageSize < maxQueues ? () => setPage(page + 1) : null}
            >
              Page {page + 1} of {Math.ceil(maxQueues / pageSize)}
            </Pager>
          ) : null}
        </>
      ) : (
        <LoadingOrError problem={problem} />
      )}
    </>
  );
}

export function HealthLine({ health }: { health: Health }) {
  return (
    <p className="cq-health">
      <i className={health.ok ? "cq-dot cq-ok" : "cq-dot cq-bad"} aria-hidden="true" />
      <span className="cq-hidden">{health.ok ? "reachable" : "not reachable"}</span>
      <span>{health.address ?? "no address"}</span>
      {health.version ? <span>{health.version}</span> : null}
      {health.dialect ? <span>{health.dialect} dialect</span> : null}
      {health.latency_ms !== undefined ? <span>{health.latency_ms} ms</span> : null}
      {health.memory ? (
        <span>
          {formatSize(health.memory)}
          {health.memory_max ? ` of ${formatSize(health.memory_max)}` : ""}
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
      {connection.error ? <ErrorNotice problem={connection.error} /> : null}
      {connection.warning ? <p className="cq-warning">{connection.warning}</p> : null}
      {connection.queues.length ? (
        <QueueTable connection={connection.id} queues={connection.queues} />
      ) : connection.ok ? (
        <EmptyState title={search ? "No matching queues" : "No queues"}>
          {search ? null : "A queue appears here once its first job has been added."}
        </EmptyState>
      ) : null}
      {!connection.complete ? <p className="cq-note">Still scanning the keys of this server for queues.</p> : null}
    </section>
  );
}

function QueueTable({ connection, queues }: { connection: string; queues: QueueRow[] }) {
  return (
    <div className="cq-scroll">
      <table className="cq-table cq-queues">
        <caption className="cq-hidden">Queues of {connection}</caption>
        <thead>
          <tr>
            <th scope="col">Queue</th>
            <th scope="col" className="cq-num">Waiting</th>
            <th scope="col" className="cq-num">Running</th>
            <th scope="col" className="cq-num">Delayed</th>
            <th scope="col" className="cq-num">Dead</th>
            <th scope="col" className="cq-num" title="Entries that no worker has read yet">Lag</th>
            <th scope="col" className="cq-num" title="Age of the oldest entry">Oldest</th>
            <th scope="col" className="cq-num" title="Jobs added per second over the last minute">Added / s</th>
            <th scope="col" className="cq-num" title={`Jobs done per minute over the last ${RECENT_MINUTES} minutes`}>Done / min</th>
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
              <QueueTableRow key={queue.name} connection={connection} queue={queue} />
            ),
          )}
        </tbody>
      </table>
    </div>
  );
}

function QueueTableRow({ connection, queue }: { connection: string; queue: QueueRow }) {
  const params = { conn: connection, queue: queue.name };
  const recent = queue.throughput.slice(-RECENT_MINUTES);
  const donePerMinute = recent.reduce((sum, bucket) => sum + bucket.completed, 0) / Math.max(1, recent.length);
  return (
    <tr>
      <th scope="row">
        <PageLink params={params}>{queue.name}</PageLink>
      </th>
      <CountCell value={queue.waiting} />
      <CountCell value={queue.running} />
      <CountCell value={queue.delayed} />
      <td className="cq-num">
        {queue.dead ? (
          <span className="cq-dead">
            <PageLink params={{ ...params, tab: "dead-letters" }} label={`${queue.dead} dead letters of ${queue.name}`}>
              {formatCount(queue.dead)}
            </PageLink>
          </span>
        ) : (
          <span className="cq-faint">0</span>
        )}
      </td>
      <CountCell value={queue.lag} />
      <td className="cq-num">{queue.oldest_age_ms === null ? <Dash /> : formatDuration(queue.oldest_age_ms)}</td>
      <td className="cq-num">{queue.added_per_s ? formatShort(queue.added_per_s) : <Dash />}</td>
      <td className="cq-num">{donePerMinute ? formatShort(donePerMinute) : <span className="cq-faint">0</span>}</td>
      <td>
        <Sparkline buckets={queue.throughput} />
      </td>
    </tr>
  );
}

function CountCell({ value }: { value: number | null }) {
  return <td className="cq-num">{value ? formatCount(value) : value === 0 ? <span className="cq-faint">0</span> : <Dash />}</td>;
}
