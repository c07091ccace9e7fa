// Charts drawn by hand: three shapes are all that the page needs.
import { useState } from "react";

import { clock, count, exact, short } from "./format";
import type { Beat, Moment } from "./types";

export function Spark({ beats }: { beats: Beat[] }) {
  const width = 120;
  const height = 22;
  const top = Math.max(1, ...beats.map((beat) => beat.completed + beat.dead));
  const step = width / Math.max(1, beats.length);
  const done = beats.reduce((sum, beat) => sum + beat.completed, 0);
  const dead = beats.reduce((sum, beat) => sum + beat.dead, 0);
  const label = `Last 30 minutes: ${count(done)} completed, ${count(dead)} dead`;
  return (
    <svg className="cq-spark" viewBox={`0 0 ${width} ${height}`} role="img" aria-label={label}>
      <title>{label}</title>
      <line x1="0" x2={width} y1={height - 0.5} y2={height - 0.5} className="cq-axis" />
      {beats.map((beat, index) => {
        const ok = (beat.completed / top) * (height - 2);
        const bad = (beat.dead / top) * (height - 2);
        const at = { x: index * step + 0.4, width: Math.max(1, step - 0.8) };
        return (
          <g key={beat.at}>
            {ok > 0 ? <rect {...at} y={height - Math.max(1, ok)} height={Math.max(1, ok)} className="cq-ok" /> : null}
            {bad > 0 ? <rect {...at} y={height - ok - Math.max(1, bad)} height={Math.max(1, bad)} className="cq-bad" /> : null}
          </g>
        );
      })}
    </svg>
  );
}

const W = 640;
const H = 168;
const LEFT = 44;
const BOTTOM = 20;
const TOP = 8;

function ceiling(value: number): number {
  if (value <= 4) return 4;
  const power = 10 ** Math.floor(Math.log10(value));
  const nice = [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].find((each) => each * power >= value) ?? 10;
  return nice * power;
}

function Frame({ top, times, label, children }: {
  top: number;
  times: number[];
  label: string;
  children: React.ReactNode;
}) {
  const marks = [0, 0.5, 1];
  const [first, last] = [times[0], times[times.length - 1]];
  const say = last - first < 20 * 60_000 ? exact : clock;
  return (
    <svg className="cq-chart" viewBox={`0 0 ${W} ${H}`} role="img" aria-label={label} preserveAspectRatio="none">
      {marks.map((part) => {
        const y = TOP + (1 - part) * (H - TOP - BOTTOM);
        return (
          <g key={part}>
            <line x1={LEFT} x2={W} y1={y} y2={y} className="cq-grid" />
            <text x={LEFT - 6} y={y + 3.5} textAnchor="end">
              {short(top * part)}
            </text>
          </g>
        );
      })}
      {times.length > 1
        ? [0, 0.25, 0.5, 0.75, 1].map((part) => (
            <text
              key={part}
              x={LEFT + part * (W - LEFT)}
              y={H - 5}
              textAnchor={part === 0 ? "start" : part === 1 ? "end" : "middle"}
            >
              {say(first + part * (last - first))}
            </text>
          ))
        : null}
      {children}
    </svg>
  );
}

const SERIES = [
  { key: "completed", label: "Completed", tone: "ok" },
  { key: "retried", label: "Retried", tone: "warn" },
  { key: "dead", label: "Dead", tone: "bad" },
] as const;

export function Throughput({ beats }: { beats: Beat[] }) {
  const [hover, setHover] = useState<number | null>(null);
  const minutes = beats.length > 1 ? (beats[1].at - beats[0].at) / 60_000 : 1;
  const rate = (beat: Beat, key: "completed" | "retried" | "dead"): number => beat[key] / minutes;
  const sums = beats.map((beat) => (beat.completed + beat.retried + beat.dead) / minutes);
  const top = ceiling(Math.max(0, ...sums));
  const height = H - TOP - BOTTOM;
  const step = (W - LEFT) / Math.max(1, beats.length);
  const total = beats.reduce((sum, beat) => sum + beat.completed, 0);
  const seen = hover === null ? null : beats[hover];
  return (
    <figure className="cq-figure">
      <figcaption>
        <b>Ended per minute</b>
        {SERIES.map((each) => (
          <span key={each.key} className={`cq-key cq-${each.tone}`}>
            {each.label}
            {seen ? <em>{short(rate(seen, each.key))}</em> : null}
          </span>
        ))}
        <span className="cq-at">{seen ? `${clock(seen.at)}${seen.sampled ? ", sampled" : ""}` : ""}</span>
      </figcaption>
      <Frame top={top} times={beats.map((beat) => beat.at)} label={`Jobs ended over time: ${count(total)} completed`}>
        {beats.map((beat, index) => {
          let base = TOP + height;
          return (
            <g key={beat.at} onMouseEnter={() => setHover(index)} onMouseLeave={() => setHover(null)}>
              <rect x={LEFT + index * step} y={TOP} width={step} height={height} className="cq-hit" />
              {SERIES.map((each) => {
                const tall = (rate(beat, each.key) / top) * height;
                if (!tall) return null;
                const drawn = Math.max(1.5, tall);
                base -= drawn;
                return (
                  <rect
                    key={each.key}
                    x={LEFT + index * step + step * 0.12}
                    y={base}
                    width={step * 0.76}
                    height={drawn}
                    className={`cq-${each.tone}`}
                  />
                );
              })}
            </g>
          );
        })}
      </Frame>
    </figure>
  );
}

const LINES = [
  { key: "waiting", label: "Waiting", tone: "wait" },
  { key: "running", label: "Running", tone: "run" },
  { key: "delayed", label: "Delayed", tone: "later" },
  { key: "dead", label: "Dead", tone: "bad" },
] as const;

export function Depths({ moments }: { moments: Moment[] }) {
  const last = moments.at(-1);
  const first = moments[0]?.at ?? 0;
  const range = Math.max(1, (last?.at ?? 1) - first);
  const top = ceiling(Math.max(0, ...moments.flatMap((each) => LINES.map((line) => each[line.key]))));
  const height = H - TOP - BOTTOM;
  const path = (key: (typeof LINES)[number]["key"]): string =>
    moments
      .map((each, index) => {
        const x = LEFT + ((each.at - first) / range) * (W - LEFT);
        const y = TOP + height - (each[key] / top) * height;
        // Nobody looked for a while: what was in between is not known, so it is not drawn.
        const gap = index === 0 || each.at - moments[index - 1].at > 60_000;
        return `${gap ? "M" : "L"}${x.toFixed(1)},${y.toFixed(1)}`;
      })
      .join("");
  return (
    <figure className="cq-figure">
      <figcaption>
        <b>Depth</b>
        {LINES.map((each) => (
          <span key={each.key} className={`cq-key cq-${each.tone}`}>
            {each.label}
            {last ? <em>{short(last[each.key])}</em> : null}
          </span>
        ))}
      </figcaption>
      {moments.length > 1 ? (
        <Frame
          top={top}
          times={moments.map((each) => each.at)}
          label={`Depth since ${clock(first)}: now ${LINES.map((each) => `${last?.[each.key]} ${each.label.toLowerCase()}`).join(", ")}`}
        >
          {LINES.map((each) => (
            <path key={each.key} d={path(each.key)} className={`cq-line cq-${each.tone}`} />
          ))}
        </Frame>
      ) : (
        <p className="cq-note cq-wait-chart">Drawn from now on, while somebody looks at this page.</p>
      )}
    </figure>
  );
}
