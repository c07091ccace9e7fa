// Watchers: assets that wait for messages of a queue.
import { get } from "./api";
import { count, span } from "./format";
import { Empty, Pending, To, Trouble, When } from "./parts";
import { usePoll } from "./poll";
import type { Watcher } from "./types";

export function WatchersPage() {
  const { data, problem } = usePoll("watchers", (signal) => get<{ watchers: Watcher[] }>("watchers", {}, signal));
  return (
    <>
      <div className="cq-tools">
        <h1>Watchers</h1>
      </div>
      {problem && data ? <Trouble problem={problem} /> : null}
      {!data ? (
        <Pending problem={problem} />
      ) : data.watchers.length === 0 ? (
        <Empty title="No watcher">
          An Asset with a ChasquiMessageTrigger starts DAG runs from messages. Its DAG must be parsed and unpaused.
        </Empty>
      ) : (
        <div className="cq-scroll">
          <table className="cq-table">
            <caption className="cq-hidden">Asset watchers</caption>
            <thead>
              <tr>
                <th scope="col">Watcher</th>
                <th scope="col">Queue</th>
                <th scope="col" className="cq-num">Lag</th>
                <th scope="col" className="cq-num">In hand</th>
                <th scope="col" className="cq-num">Events today</th>
                <th scope="col">Last event</th>
                <th scope="col">Last sign</th>
                <th scope="col">Trouble</th>
              </tr>
            </thead>
            <tbody>
              {data.watchers.map((each) => (
                <Row key={`${each.name} ${each.asset}`} watcher={each} />
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}

function Row({ watcher }: { watcher: Watcher }) {
  const trouble = watcher.error?.message ?? watcher.last_error ?? watcher.problem;
  return (
    <tr>
      <th scope="row" title={watcher.uri}>{watcher.name}</th>
      <td>{watcher.queue ? <To place={{ conn: watcher.connection, queue: watcher.queue }}>{watcher.queue}</To> : "–"}</td>
      <td className="cq-num">{count(watcher.lag)}</td>
      <td className="cq-num">{count(watcher.pending)}</td>
      <td className="cq-num">{count(watcher.events_day)}</td>
      <td>{watcher.last_event ? <When at={watcher.last_event} /> : <span className="cq-zero">–</span>}</td>
      <td title={watcher.host ?? undefined}>
        {watcher.seconds_since_seen === null ? <span className="cq-zero">never</span> : `${span(watcher.seconds_since_seen * 1000)} ago`}
      </td>
      <td className={trouble ? "cq-bad-text cq-wrap" : ""}>{trouble ?? <span className="cq-zero">none</span>}</td>
    </tr>
  );
}
