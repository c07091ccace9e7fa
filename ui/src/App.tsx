// The one component that Airflow mounts: as a page, as the tab of a DAG, or of a task instance.
import { useCallback, useEffect, useMemo, useState } from "react";
import { useSearchParams } from "react-router-dom";

import { BatchView } from "./BatchView";
import { DagTab, TaskTab } from "./DagTab";
import { JobView } from "./JobView";
import { OverviewPage } from "./OverviewPage";
import { To } from "./parts";
import { usePlace } from "./place";
import { FreshContext } from "./poll";
import { QueuePage } from "./QueuePage";
import { WatchersPage } from "./WatchersPage";

export interface Ids {
  dagId?: string;
  runId?: string;
  taskId?: string;
  mapIndex?: string;
}

// Airflow renders a bundle that it has just loaded in one way, and from its next render on in another,
// which mounts it anew and forgets what the reader did. So the second way is asked for at once.
let settled = false;

export function App(ids: Ids) {
  const [params, setParams] = useSearchParams();
  const [ready, setReady] = useState(settled);
  useEffect(() => {
    if (settled) return;
    settled = true;
    setParams(params, { replace: true });
    const timer = setTimeout(() => setReady(true), 400);
    return () => clearTimeout(timer);
    // eslint-disable-next-line
  }, []);
  return ready ? <Whole {...ids} /> : <div className="cq" />;
}

function Whole({ dagId, runId, taskId, mapIndex }: Ids) {
  const [on, setOn] = useState(true);
  const [seen, setSeen] = useState(() => Date.now());
  const note = useCallback((at: number) => setSeen(at), []);
  const fresh = useMemo(() => ({ on, note }), [on, note]);
  const refresh = <Refresh on={on} toggle={() => setOn(!on)} seen={seen} />;
  return (
    <FreshContext.Provider value={fresh}>
      <div className="cq">
        {dagId && runId && taskId ? (
          <TaskTab dagId={dagId} runId={runId} taskId={taskId} mapIndex={mapIndex ?? "-1"} refresh={refresh} />
        ) : dagId ? (
          <DagTab dagId={dagId} refresh={refresh} />
        ) : (
          <Page refresh={refresh} />
        )}
      </div>
    </FreshContext.Provider>
  );
}

function Page({ refresh }: { refresh: React.ReactNode }) {
  const [place] = usePlace();
  const connection = place.get("conn");
  const queue = place.get("queue");
  const job = place.get("job");
  const batch = place.get("batch");
  const watchers = place.get("view") === "watchers";
  return (
    <main className="cq-page">
      <header className="cq-head">
        <nav aria-label="Chasqui">
          <To place={{}}>Chasqui</To>
          {connection && queue ? (
            <>
              <span aria-hidden="true">/</span>
              <span className="cq-mute-text">{connection}</span>
              <span aria-hidden="true">/</span>
              <To place={{ conn: connection, queue }}>{queue}</To>
            </>
          ) : null}
          {job || batch ? (
            <>
              <span aria-hidden="true">/</span>
              <span>{job ? "Job" : "Batch"}</span>
            </>
          ) : null}
        </nav>
        <nav aria-label="Views" className="cq-views">
          <span aria-current={!watchers && !queue ? "page" : undefined}>
            <To place={{}}>Queues</To>
          </span>
          <span aria-current={watchers ? "page" : undefined}>
            <To place={{ view: "watchers" }}>Watchers</To>
          </span>
        </nav>
        {refresh}
      </header>
      {watchers ? (
        <WatchersPage />
      ) : connection && queue && job ? (
        <JobView connection={connection} queue={queue} id={job} />
      ) : connection && queue && batch ? (
        <BatchView connection={connection} queue={queue} id={batch} />
      ) : connection && queue ? (
        <QueuePage key={`${connection}/${queue}`} connection={connection} queue={queue} />
      ) : (
        <OverviewPage />
      )}
    </main>
  );
}

function Refresh({ on, toggle, seen }: { on: boolean; toggle: () => void; seen: number }) {
  const [now, setNow] = useState(() => Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  const age = Math.max(0, Math.round((now - seen) / 1000));
  const late = on && age > 15;
  return (
    <div className="cq-refresh">
      <span className={late ? "cq-late" : ""}>{age < 2 ? "just now" : `${age} s ago`}</span>
      <button type="button" aria-pressed={on} onClick={toggle} title="Refresh every 5 seconds">
        <i className={on ? "cq-live" : "cq-still"} aria-hidden="true" />
        {on ? "Live" : "Paused"}
      </button>
    </div>
  );
}
