// One queue: numbers, charts, and its lists behind tabs.
import { useState } from "react";

import { get, queuePath } from "./api";
import { BatchesTab } from "./BatchView";
import { Depths, Throughput } from "./charts";
import { count, short, span } from "./format";
import { LettersTab } from "./LettersTab";
import { ConsumersTab, DelayedTab, JobsTab, RepeatsTab } from "./lists";
import { HealthLine } from "./OverviewPage";
import { Panel, Pending, Tabs, Trouble } from "./parts";
import { usePlace } from "./place";
import { usePoll } from "./poll";
import type { Summary } from "./types";

const RANGES: [number, string][] = [
  [15, "15 min"],
  [60, "1 h"],
  [360, "6 h"],
  [1440, "24 h"],
];

const NO_FILTER = { reason: null, name: null, age: null, text: null, in: null, letter: null };

export function QueuePage({ connection, queue }: { connection: string; queue: string }) {
  const [place, go] = usePlace();
  const [minutes, setMinutes] = useState(60);
  const tab = place.get("tab") ?? "overview";
  const { data, problem } = usePoll(`queue ${connection} ${queue} ${minutes}`, (signal) =>
    get<Summary>(queuePath(connection), { queue_name: queue, minutes }, signal),
  );
  const where = { connection, queue };
  return (
    <>
      <div className="cq-tools">
        <h1>{queue}</h1>
        {data ? <HealthLine health={data.health} /> : null}
      </div>
      {problem && data ? <Trouble problem={problem} /> : null}
      {data ? <Numbers summary={data} /> : <Pending problem={problem} />}
      <Tabs
        label="Parts of the queue"
        chosen={tab}
        choose={(id) => go({ ...NO_FILTER, tab: id === "overview" ? null : id }, true)}
        items={[
          { id: "overview", label: "Overview" },
          { id: "jobs", label: "Jobs", count: data ? data.waiting + data.running : null },
          { id: "delayed", label: "Delayed", count: data?.delayed },
          { id: "batches", label: "Batches" },
          { id: "letters", label: "Dead letters", count: data?.dead, bad: true },
          { id: "repeats", label: "Repeats", count: data?.repeats },
          { id: "consumers", label: "Consumers", count: data?.consumers },
        ]}
      />
      <Panel tab={tab}>
        {tab === "jobs" ? (
          <JobsTab {...where} />
        ) : tab === "delayed" ? (
          <DelayedTab {...where} />
        ) : tab === "batches" ? (
          <BatchesTab {...where} />
        ) : tab === "letters" ? (
          <LettersTab {...where} mayChange={data?.may_change ?? false} />
        ) : tab === "repeats" ? (
          <RepeatsTab {...where} />
        ) : tab === "consumers" ? (
          <ConsumersTab {...where} />
        ) : data ? (
          <Charts summary={data} minutes={minutes} setMinutes={setMinutes} />
        ) : null}
      </Panel>
    </>
  );
}

function Numbers({ summary }: { summary: Summary }) {
  const items: [string, string, string][] = [
    ["Waiting", count(summary.waiting), "wait"],
    ["Running", count(summary.running), "run"],
    ["Delayed", count(summary.delayed), "later"],
    ["Dead", count(summary.dead), summary.dead ? "bad" : "mute"],
    ["Lag", count(summary.lag), "mute"],
    ["Oldest", span(summary.oldest_ms), "mute"],
    ["In per second", summary.added_per_s === null ? "–" : short(summary.added_per_s), "mute"],
    ["Consumers", count(summary.consumers), "mute"],
  ];
  return (
    <dl className="cq-numbers">
      {items.map(([name, value, tone]) => (
        <div key={name} className={`cq-number cq-tone-${tone}`}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

function Charts({ summary, minutes, setMinutes }: {
  summary: Summary;
  minutes: number;
  setMinutes: (minutes: number) => void;
}) {
  const sampled = summary.beats.some((beat) => beat.sampled);
  return (
    <>
      <div className="cq-ranges" role="group" aria-label="Time range">
        {RANGES.map(([value, label]) => (
          <button key={value} type="button" aria-pressed={value === minutes} onClick={() => setMinutes(value)}>
            {label}
          </button>
        ))}
      </div>
      <div className="cq-charts">
        <Throughput beats={summary.beats} />
        <Depths moments={summary.history} />
      </div>
      <p className="cq-note">
        Ends are counted from the events stream, which keeps the newest events only.
        {sampled ? " Where it was busiest, the count is scaled up from a sample." : ""}
      </p>
    </>
  );
}
