// Numbers, sizes, durations and times as text.

const NUMBER = new Intl.NumberFormat("en-US");
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const CLOCK_WITH_SECONDS = new Intl.DateTimeFormat(undefined, { timeStyle: "medium", hourCycle: "h23" });
const DATE_TIME = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

export function formatDeadLetters(count: number): string {
  return `${formatCount(count)} ${count === 1 ? "dead letter" : "dead letters"}`;
}

export function formatCount(value: number | null | undefined): string {
  return value === null || value === undefined ? "–" : NUMBER.format(value);
}

/** At most about four digits, for axes and table cells. */
export function formatShort(value: number): string {
  if (value < 10_000) return NUMBER.format(value < 100 ? Math.round(value * 10) / 10 : Math.round(value));
  if (value < 1_000_000) return `${Math.round(value / 100) / 10}k`;
  return `${Math.round(value / 100_000) / 10}M`;
}

export function formatDuration(ms: number | null | undefined): string {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  const s = Math.floor(ms / 1000);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86_400)} d ${Math.floor((s % 86_400) / 3600)} h`;
}

export function formatRelativeTime(at: number, now = Date.now()): string {
  const ms = now - at;
  return ms >= 0 ? `${formatDuration(ms)} ago` : `in ${formatDuration(-ms)}`;
}

export function formatMicroseconds(us: number): string {
  if (us < 1000) return `${us} µs`;
  return us < 1_000_000 ? `${Math.round(us / 100) / 10} ms` : formatDuration(us / 1000);
}

export function formatSize(bytes: number | null | undefined): string {
  if (bytes === null || bytes === undefined) return "–";
  if (bytes < 1024) return `${bytes} B`;
  if (bytes < 1024 ** 2) return `${Math.round(bytes / 102.4) / 10} KB`;
  if (bytes < 1024 ** 3) return `${Math.round(bytes / 1024 ** 2 / 0.1) / 10} MB`;
  return `${Math.round(bytes / 1024 ** 3 / 0.1) / 10} GB`;
}

export const formatClock = (at: number): string => CLOCK.format(at);
export const formatClockWithSeconds = (at: number): string => CLOCK_WITH_SECONDS.format(at);
export const formatDateTime = (at: number): string => DATE_TIME.format(at);
