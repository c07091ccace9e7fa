// The API's answers.
import type { Problem } from "./api";

export interface Beat {
  at: number;
  completed: number;
  retried: number;
  dead: number;
  sampled: boolean;
}

export interface Depth {
  waiting: number;
  running: number;
  delayed: number;
  dead: number;
  lag: number | null;
  oldest_ms: number | null;
  next_due: number | null;
  consumers: number;
  repeats: number;
}

export interface QueueRow extends Depth {
  name: string;
  error: Problem | null;
  added_per_s: number | null;
  beats: Beat[];
}

export interface Health {
  where: string | null;
  ok: boolean;
  error: Problem | null;
  dialect?: string;
  version?: string | null;
  latency_ms?: number;
  memory?: number | null;
  memory_max?: number | null;
  clients?: number | null;
  warning?: string | null;
}

export interface Connection extends Health {
  id: string;
  queues: QueueRow[];
  total: number;
  complete: boolean;
  may_change: boolean;
}

export interface Overview {
  connections: Connection[];
  page_size: number;
  now: number;
}

export interface Moment {
  at: number;
  waiting: number;
  running: number;
  delayed: number;
  dead: number;
}

export interface Summary extends Depth {
  name: string;
  connection: string;
  may_change: boolean;
  health: Health;
  added_per_s: number | null;
  beats: Beat[];
  history: Moment[];
  now: number;
}

export interface JobRow {
  entry_id: string;
  id: string | null;
  name: string;
  size: number;
  state: string;
  attempt: number | null;
  created_at: number | null;
  at: number;
  consumer: string | null;
  idle_ms: number | null;
  deliveries: number | null;
  batch: string | null;
}

export interface DelayedRow {
  id: string | null;
  name: string;
  size: number;
  due_at: number;
  attempt: number | null;
  created_at: number | null;
  batch: string | null;
}

export interface RepeatRow {
  key: string;
  name: string;
  schedule: string;
  next_at: number;
  fired: number;
  limit: number | null;
  end_at: number | null;
  missed: string;
}

export interface Group {
  name: string;
  workers: boolean;
  pending: number;
  lag: number | null;
  last_id: string;
  total: number;
  consumers: { name: string; pending: number; idle_ms: number }[];
}

export interface Origin {
  dag_id: string;
  run_id: string;
  task_id: string;
  map_index: number;
}

export interface Batch {
  id: string;
  total: number | null;
  parts: number;
  sent: number;
  done: number;
  dead: number;
  finished: boolean;
  created_at: number | null;
  source: string;
  origin: Origin | null;
  dead_ids?: string[];
}

export interface Letter {
  id: string;
  job_id: string | null;
  name: string;
  reason: string;
  error: string | null;
  attempts: number | null;
  at: number;
  size: number;
  batch: string | null;
  readable: boolean;
}

export interface Text {
  hidden: boolean;
  text: string;
  cut: boolean;
}

export interface WholeLetter extends Letter {
  detail: string | null;
  source_id: string;
  created_at: number | null;
  payload: Text | null;
}

export interface LetterPage {
  letters: Letter[];
  cursor: string | null;
  looked: number;
  total: number;
}

export interface Facets {
  sampled: number;
  reasons: [string, number][];
  names: [string, number][];
}

export interface Step {
  matched: number;
  affected: number;
  max_replays_reached: number;
  unreadable: number;
  missing: number;
  looked: number;
  cursor: string | null;
  until: string | null;
}

export interface Event {
  entry_id: string;
  name: string;
  ts_ms: number;
  attempt: number | null;
  duration_us: number | null;
  backoff_ms: number | null;
  delay_ms: number | null;
  reason: string | null;
}

export interface Job {
  id: string;
  state: string;
  gave_up: boolean;
  name: string;
  attempt: number | null;
  created_at: number | null;
  due_at: number | null;
  entry_id: string | null;
  reason: string | null;
  payload: Text | null;
  result: Text | null;
  progress: unknown;
  letter: WholeLetter | null;
  events: Event[];
  more_events: boolean;
  batch: Batch | null;
  origin: Origin | null;
}

export interface SentLink extends Origin {
  sent_at: number;
  connection: string;
  queue: string;
  job: string | null;
  batch: string | null;
  progress?: Batch;
  error?: Problem;
}

export interface Watcher {
  name: string;
  asset: string;
  uri: string;
  connection: string;
  queue: string | null;
  group: string | null;
  problem: string | null;
  host: string | null;
  lag: number | null;
  pending: number | null;
  delivered: number | null;
  last_error: string | null;
  seconds_since_seen: number | null;
  events_day: number;
  last_event: number | null;
  error: Problem | null;
}
