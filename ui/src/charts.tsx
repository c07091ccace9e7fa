// The charts of the page, as plain SVG: a sparkline, stacked bars and lines.
import { useState } from "react";

import { formatClock, formatClockWithSeconds, formatCount, formatShort } from "./format";
import type { DepthSample, ThroughputBucket } from "./types";

const SPARKLINE_WIDTH = 120;
const SPARKLINE_HEIGHT = 22;

export function Sparkline({ buckets }: { buckets: ThroughputBucket[] }) {
  const maximum = Math.max(1, ...buckets.map((bucket) => bucket.completed + bucket.dead));
  const step = SPARKLINE_WIDTH / Math.max(1, buckets.length);
  const scale = (SPARKLINE_HEIGHT - 2) / maximum;
  const done = buckets.reduce((sum, bucket) => sum + bucket.completed, 0);
  const dead = buckets.reduce((sum, bucket) => sum + bucket.dead, 0);
  const label = `Last 30 minutes: ${formatCount(done)} done, ${formatCount(dead)} dead`;
  const baseline = SPARKLINE_HEIGHT - 0.5;
  return (
    <svg className="cq-sparkline" viewBox={`0 0 ${SPARKLINE_WIDTH} ${SPARKLINE_HEIGHT}`} role="img" aria-label={label}>
      <title>{label}</title>
      <line x1="0" x2={SPARKLINE_WIDTH} y1={baseline} y2={baseline} className="cq-axis" />
      {buckets.map((bucket, index) => {
        const doneHeight = bucket.completed ? Math.max(1, bucket.completed * scale) : 0;
        const deadHeight = bucket.dead ? Math.max(1, bucket.dead * scale) : 0;
        const column = { x: index * step + 0.4, width: Math.max(1, step - 0.8) };
        return (
          <g key={bucket.start_at}>
            {doneHeight ? <rect {...column} y={SPARKLINE_HEIGHT - doneHeight} height={doneHeight} className="cq-ok" /> : null}
            {deadHeight ? (
              <rect {...column} y={SPARKLINE_HEIGHT - doneHeight - deadHeight} height={deadHeight} className="cq-bad" />
            ) : null}
          </g>
        );
      })}
    </svg>
  );
}

const WIDTH = 640;
const HEIGHT = 168;
const LEFT = 44;
const BOTTOM = 20;
const TOP = 8;
const PLOT_WIDTH = WIDTH - LEFT;
const PLOT_HEIGHT = HEIGHT - TOP - BOTTOM;

/** The smallest round number that is not below `value`. */
function axisMaximum(value: number): number {
  if (value <= 4) return 4;
  const power = 10 ** Math.floor(Math.log10(value));
  const factor = [1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].find((candidate) => candidate * power >= value) ?? 10;
  return factor * power;
}

function Axes({ maximum, times, label, children }: {
  maximum: number;
  times: number[];
  label: string;
  children: React.ReactNode;
}) {
  const [first, last] = [times[0], times[times.length - 1]];
  const formatTime = last - first < 20 * 60_000 ? formatClockWithSeconds : formatClock;
  return (
    <svg className="cq-chart" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={label} preserveAspectRatio="none">
      {[0, 0.5, 1].map((fraction) => {
        const y = TOP + (1 - fraction) * PLOT_HEIGHT;
        return (
          <g key={fraction}>
            <line x1={LEFT} x2={WIDTH} y1={y} y2={y} className="cq-grid" />
            <text x={LEFT - 6} y={y + 3.5} textAnchor="end">
              {formatShort(maximum * fraction)}
            </text>
          </g>
        );
      })}
      {times.length > 1
        ? [0, 0.25, 0.5, 0.75, 1].map((fraction) => (
            <text
              key={fraction}
              x={LEFT + fraction * PLOT_WIDTH}
              y={HEIGHT - 5}
              textAnchor={fraction === 0 ? "start" : fraction === 1 ? "end" : "middle"}
            >
              {formatTime(first + fraction * (last - first))}
            </text>
          ))
        : null}
      {children}
    </svg>
  );
}

const OUTCOMES = [
  { key: "completed", label: "Done", tone: "ok" },
  { key: "retried", label: "Retried", tone: "warn" },
  { key: "dead", label: "Dead", tone: "bad" },
] as const;

type Outcome = (typeof OUTCOMES)[number]["key"];

export function ThroughputChart({ buckets }: { buckets: ThroughputBucket[] }) {
  const [hoverIndex, setHoverIndex] = useState<number | null>(null);
  const minutes = buckets.length > 1 ? (buckets[1].start_at - buckets[0].start_at) / 60_000 : 1;
  const rate = (bucket: ThroughputBucket, outcome: Outcome): number => bucket[outcome] / minutes;
  const sums = buckets.map((bucket) => (bucket.completed + bucket.retried + bucket.dead) / minutes);
  const maximum = axisMaximum(Math.max(0, ...sums));
  const step = PLOT_WIDTH / Math.max(1, buckets.length);
  const done = buckets.reduce((sum, bucket) => sum + bucket.completed, 0);
  const hovered = hoverIndex === null ? null : buckets[hoverIndex];
  return (
    <figure className="cq-figure">
      <figcaption>
        <b>Jobs per minute</b>
        {OUTCOMES.map((outcome) => (
          <span key={outcome.key} className={`cq-key cq-${outcome.tone}`}>
            {outcome.label}
            {hovered ? <em>{formatShort(rate(hovered, outcome.key))}</em> : null}
          </span>
        ))}
        <span className="cq-hover-time">
          {hovered ? formatClock(hovered.start_at) : ""}
        </span>
      </figcaption>
      <Axes
        maximum={maximum}
        times={buckets.map((bucket) => bucket.start_at)}
        label={`Jobs per minute over time: ${formatCount(done)} done in total`}
      >
        {buckets.map((bucket, index) => {
          let y = TOP + PLOT_HEIGHT;
          return (
            <g key={bucket.start_at} onMouseEnter={() => setHoverIndex(index)} onMouseLeave={() => setHoverIndex(null)}>
              <rect x={LEFT + index * step} y={TOP} width={step} height={PLOT_HEIGHT} className="cq-hover-area" />
              {OUTCOMES.map((outcome) => {
                const height = (rate(bucket, outcome.key) / maximum) * PLOT_HEIGHT;
                if (!height) return null;
                const visibleHeight = Math.max(1.5, height);
                y -= visibleHeight;
                return (
                  <rect
                    key={outcome.key}
                    x={LEFT + index * step + step * 0.12}
                    y={y}
                    width={step * 0.76}
                    height={visibleHeight}
                    className={`cq-${outcome.tone}`}
                  />
                );
              })}
            </g>
          );
        })}
      </Axes>
    </figure>
  );
}

const STATES = [
  { key: "waiting", label: "Waiting", tone: "waiting" },
  { key: "running", label: "Running", tone: "running" },
  { key: "delayed", label: "Delayed", tone: "delayed" },
  { key: "dead", label: "Dead", tone: "bad" },
] as const;

type State = (typeof STATES)[number]["key"];

// The depth between two samples that are further apart is not known, so no line is drawn.
const MAX_SAMPLE_GAP_MS = 60_000;

export function DepthChart({ samples }: { samples: DepthSample[] }) {
  const last = samples.at(-1);
  const startAt = samples[0]?.sampled_at ?? 0;
  const period = Math.max(1, (last?.sampled_at ?? 1) - startAt);
  const maximum = axisMaximum(Math.max(0, ...samples.flatMap((sample) => STATES.map((state) => sample[state.key]))));
  const path = (state: State): string =>
    samples
      .map((sample, index) => {
        const x = LEFT + ((sample.sampled_at - startAt) / period) * PLOT_WIDTH;
        const y = TOP + PLOT_HEIGHT - (sample[state] / maximum) * PLOT_HEIGHT;
        const gap = index === 0 || sample.sampled_at - samples[index - 1].sampled_at > MAX_SAMPLE_GAP_MS;
        return `${gap ? "M" : "L"}${x.toFixed(1)},${y.toFixed(1)}`;
      })
      .join("");
  return (
    <figure className="cq-figure">
      <figcaption>
        <b>Depth</b>
        {STATES.map((state) => (
          <span key={state.key} className={`cq-key cq-${state.tone}`}>
            {state.label}
            {last ? <em>{formatShort(last[state.key])}</em> : null}
          </span>
        ))}
      </figcaption>
      {samples.length > 1 ? (
        <Axes
          maximum={maximum}
          times={samples.map((sample) => sample.sampled_at)}
          label={`Depth since ${formatClock(startAt)}: now ${STATES.map((state) => `${last?.[state.key]} ${state.key}`).join(", ")}`}
        >
          {STATES.map((state) => (
            <path key={state.key} d={path(state.key)} className={`cq-line cq-${state.tone}`} />
          ))}
        </Axes>
      ) : (
        <p className="cq-note cq-chart-empty">The depth is recorded while this page is open.</p>
      )}
    </figure>
  );
}
