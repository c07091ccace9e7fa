// One queue: its numbers, charts, and lists in tabs.
import { useState } from "react";

import { ActionButton } from "./ActionButton";
import { get, queuePath } from "./api";
import { BatchesTab } from "./BatchView";
import { DepthChart, ThroughputChart } from "./charts";
import { ErrorNotice, LoadingOrError, TabPanel, Tabs, type QueueRef } from "./components";
import { DeadLettersTab, NO_FILTER } from "./DeadLettersTab";
import { formatCount, formatDuration, formatShort } from "./format";
import { HealthLine } from "./OverviewPage";
import { usePoll } from "./polling";
import { useQueryParams } from "./queryParams";
import { ConsumersTab, DelayedTab, JobsTab, RepeatsTab } from "./queueTabs";
import type { QueueSummary } from "./types";

const TIME_RANGES: [minutes: number, label: string][] = [
  [15, "15 min"],
  [60, "1 h"],
  [360, "6 h"],
  [1440, "24 h"],
];

export function QueuePage({ connection, queue }: QueueRef) {
  const [params, navigate] = useQueryParams();
  const [minutes, setMinutes] = useState(60);
  const tab = params.get("tab") ?? "overview";
  const { data, problem } = usePoll(`queue ${connection} ${queue} ${minutes}`, (signal) =>
    get<QueueSummary>(queuePath(connection), { queue_name: queue, minutes }, signal),
  );
  const queueRef = { connection, queue };
  return (
    <>
      <div className="cq-toolbar">
        <h1>{queue}</h1>
        {data?.paused ? <span className="cq-state cq-warn">paused</span> : null}
        {data?.can_edit ? <PauseButton {...queueRef} paused={data.paused} /> : null}
        {data ? <HealthLine health={data.health} /> : null}
      </div>
      {data?.paused_job_names.length ? (
        <p className="cq-note">Paused job names: {data.paused_job_names.join(", ")}</p>
      ) : null}
      {problem && data ? <ErrorNotice problem={problem} /> : null}
      {data ? <Stats summary={data} /> : <LoadingOrError problem={problem} />}
      <Tabs
        label="Sections of the queue"
        selected={tab}
        onSelect={(id) => navigate({ ...NO_FILTER, tab: id === "overview" ? null : id }, true)}
        items={[
          { id: "overview", label: "Overview" },
          { id: "jobs", label: "Jobs", count: data ? data.waiting + data.running : null },
          { id: "delayed", label: "Delayed", count: data?.delayed },
          { id: "batches", label: "Batches" },
          { id: "dead-letters", label: "Dead letters", count: data?.dead, bad: true },
          { id: "repeats", label: "Repeats", count: data?.repeats },
          { id: "consumers", label: "Consumers", count: data?.consumers },
        ]}
      />
      <TabPanel tab={tab}>
        {tab === "jobs" ? (
          <JobsTab {...queueRef} />
        ) : tab === "delayed" ? (
          <DelayedTab {...queueRef} />
        ) : tab === "batches" ? (
          <BatchesTab {...queueRef} />
        ) : tab === "dead-letters" ? (
          <DeadLettersTab {...queueRef} canEdit={data?.can_edit ?? false} />
        ) : tab === "repeats" ? (
          <RepeatsTab {...queueRef} />
        ) : tab === "consumers" ? (
          <ConsumersTab {...queueRef} />
        ) : data ? (
          <Charts summary={data} minutes={minutes} setMinutes={setMinutes} />
        ) : null}
      </TabPanel>
    </>
  );
}

function PauseButton({ connection, queue, paused }: QueueRef & { paused: boolean }) {
  const action = paused ? "Resume" : "Pause";
  return (
    <ActionButton
      label={`${action} queue`}
      title={`${action} queue`}
      path={queuePath(connection, "/pause")}
      params={{ queue_name: queue }}
      body={{ paused: !paused }}
      describeResult={() => (paused ? "The queue is resumed." : "The queue is paused.")}
    >
      <p>
        {paused
          ? `Workers start the waiting jobs of ${queue} again, within about a second.`
          : `Workers start no further jobs of ${queue}. Running jobs end; new jobs are still accepted and wait.`}
      </p>
    </ActionButton>
  );
}

function Stats({ summary }: { summary: QueueSummary }) {
  const stats: [name: string, value: string, tone: string][] = [
    ["Waiting", formatCount(summary.waiting), "waiting"],
    ["Running", formatCount(summary.running), "running"],
    ["Delayed", formatCount(summary.delayed), "delayed"],
    ["Dead", formatCount(summary.dead), summary.dead ? "bad" : "muted"],
    ["Lag", formatCount(summary.lag), "muted"],
    ["Oldest", formatDuration(summary.oldest_age_ms), "muted"],
    ["Added / s", summary.added_per_s === null ? "–" : formatShort(summary.added_per_s), "muted"],
    ["Consumers", formatCount(summary.consumers), "muted"],
  ];
  return (
    <dl className="cq-stats">
      {stats.map(([name, value, tone]) => (
        <div key={name} className={`cq-stat cq-tone-${tone}`}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

function Charts({ summary, minutes, setMinutes }: {
  summary: QueueSummary;
  minutes: number;
  setMinutes: (minutes: number) => void;
}) {
  return (
    <>
      <div className="cq-button-group" role="group" aria-label="Time range">
        {TIME_RANGES.map(([value, label]) => (
          <button key={value} type="button" aria-pressed={value === minutes} onClick={() => setMinutes(value)}>
            {label}
          </button>
        ))}
      </div>
      <div className="cq-charts">
        <ThroughputChart buckets={summary.throughput} />
        <DepthChart samples={summary.history} />
      </div>
      <p className="cq-note">
        Throughput is counted by the workers, once per second. Workers of ChasquiMQ 1.3.0 do not count.
      </p>
    </>
  );
}
