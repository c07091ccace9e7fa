// Asset watchers that read messages of a queue.
import { get } from "./api";
import { Dash, EmptyState, ErrorNotice, LoadingOrError, PageLink, Timestamp } from "./components";
import { formatCount, formatDuration } from "./format";
import { usePoll } from "./polling";
import type { Watcher } from "./types";

export function WatchersPage() {
  const { data, problem } = usePoll("watchers", (signal) => get<{ watchers: Watcher[] }>("watchers", {}, signal));
  return (
    <>
      <div className="cq-toolbar">
        <h1>Watchers</h1>
      </div>
      {problem && data ? <ErrorNotice problem={problem} /> : null}
      {!data ? (
        <LoadingOrError problem={problem} />
      ) : data.watchers.length === 0 ? (
        <EmptyState title="No watchers">
          An asset with a ChasquiMessageTrigger starts DAG runs from messages. It appears here when its DAG is parsed
          and not paused.
        </EmptyState>
      ) : (
        <div className="cq-scroll">
          <table className="cq-table">
            <caption className="cq-hidden">Asset watchers</caption>
            <thead>
              <tr>
                <th scope="col">Watcher</th>
                <th scope="col">Queue</th>
                <th scope="col" className="cq-num" title="Messages that the watcher has not read yet">Lag</th>
                <th scope="col" className="cq-num" title="Messages that were read but not acknowledged yet">Running</th>
                <th scope="col" className="cq-num">Events in 24 h</th>
                <th scope="col">Last event</th>
                <th scope="col">Last seen</th>
                <th scope="col">Problem</th>
              </tr>
            </thead>
            <tbody>
              {data.watchers.map((watcher) => (
                <WatcherRow key={`${watcher.name} ${watcher.asset}`} watcher={watcher} />
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}

function WatcherRow({ watcher }: { watcher: Watcher }) {
  const problem = watcher.error?.message ?? watcher.last_error ?? watcher.problem;
  const { connection, queue, seconds_since_seen: seconds } = watcher;
  return (
    <tr>
      <th scope="row" title={watcher.uri}>{watcher.name}</th>
      <td>{queue ? <PageLink params={{ conn: connection, queue }}>{queue}</PageLink> : <Dash />}</td>
      <td className="cq-num">{formatCount(watcher.lag)}</td>
      <td className="cq-num">{formatCount(watcher.pending)}</td>
      <td className="cq-num">{formatCount(watcher.events_last_day)}</td>
      <td><Timestamp at={watcher.last_event_at} /></td>
      <td title={watcher.host ?? undefined}>
        {seconds === null ? <span className="cq-faint">never</span> : `${formatDuration(seconds * 1000)} ago`}
      </td>
      <td className={problem ? "cq-bad-text cq-wrap" : ""}>{problem ?? <span className="cq-faint">none</span>}</td>
    </tr>
  );
}
