// The component that Airflow mounts: as a page, as a tab of a DAG or as a tab of a task instance.
import { useCallback, useEffect, useMemo, useState } from "react";
import { useSearchParams } from "react-router-dom";

import { BatchView } from "./BatchView";
import { PageLink } from "./components";
import { DagTab, TaskTab } from "./DagTab";
import { JobView } from "./JobView";
import { OverviewPage } from "./OverviewPage";
import { RefreshContext } from "./polling";
import { QueuePage } from "./QueuePage";
import { useQueryParams } from "./queryParams";
import { WatchersPage } from "./WatchersPage";

const STALE_AFTER_S = 15;

export interface AirflowIds {
  dagId?: string;
  runId?: string;
  taskId?: string;
  mapIndex?: string;
}

// Airflow renders a bundle that it has just loaded in one place of its tree, and from the next render
// on in another. React then mounts the component again and its state is lost. Changing the URL causes
// that second render at once, before the user has done anything.
let mountedFinally = false;

export function App(ids: AirflowIds) {
  const [params, setParams] = useSearchParams();
  const [ready, setReady] = useState(mountedFinally);
  useEffect(() => {
    if (mountedFinally) return;
    mountedFinally = true;
    setParams(params, { replace: true });
    const timer = setTimeout(() => setReady(true), 400);
    return () => clearTimeout(timer);
    // eslint-disable-next-line
  }, []);
  return ready ? <Root {...ids} /> : <div className="cq" />;
}

function Root({ dagId, runId, taskId, mapIndex }: AirflowIds) {
  const [live, setLive] = useState(true);
  const [updatedAt, setUpdatedAt] = useState(() => Date.now());
  const reportUpdate = useCallback((at: number) => setUpdatedAt(at), []);
  const refreshState = useMemo(() => ({ live, reportUpdate }), [live, reportUpdate]);
  const refresh = <RefreshControl live={live} onToggle={() => setLive(!live)} updatedAt={updatedAt} />;
  return (
    <RefreshContext.Provider value={refreshState}>
      <div className="cq">
        {dagId && runId && taskId ? (
          <TaskTab dagId={dagId} runId={runId} taskId={taskId} mapIndex={mapIndex ?? "-1"} refresh={refresh} />
        ) : dagId ? (
          <DagTab dagId={dagId} refresh={refresh} />
        ) : (
          <Page refresh={refresh} />
        )}
      </div>
    </RefreshContext.Provider>
  );
}

function Page({ refresh }: { refresh: React.ReactNode }) {
  const [params] = useQueryParams();
  const connection = params.get("conn");
  const queue = params.get("queue");
  const job = params.get("job");
  const batch = params.get("batch");
  const watchers = params.get("view") === "watchers";
  return (
    <main className="cq-page">
      <header className="cq-head">
        <nav aria-label="Breadcrumb">
          <PageLink params={{}}>Chasqui</PageLink>
          {connection && queue ? (
            <>
              <span aria-hidden="true">/</span>
              <span className="cq-soft">{connection}</span>
              <span aria-hidden="true">/</span>
              <PageLink params={{ conn: connection, queue }}>{queue}</PageLink>
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
            <PageLink params={{}}>Queues</PageLink>
          </span>
          <span aria-current={watchers ? "page" : undefined}>
            <PageLink params={{ view: "watchers" }}>Watchers</PageLink>
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

function RefreshControl({ live, onToggle, updatedAt }: { live: boolean; onToggle: () => void; updatedAt: number }) {
  const [now, setNow] = useState(() => Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  const ageSeconds = Math.max(0, Math.round((now - updatedAt) / 1000));
  const stale = live && ageSeconds > STALE_AFTER_S;
  return (
    <div className="cq-refresh">
      <span className={stale ? "cq-stale" : ""}>Updated {ageSeconds < 2 ? "just now" : `${ageSeconds} s ago`}</span>
      <button type="button" aria-pressed={live} onClick={onToggle} title="Refresh every 5 seconds">
        <i className={live ? "cq-live" : "cq-paused"} aria-hidden="true" />
        {live ? "Live" : "Paused"}
      </button>
    </div>
  );
}
