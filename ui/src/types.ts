// The responses of the API.
import type { Problem } from "./api";

export interface ThroughputBucket {
  start_at: number;
  completed: number;
  failed: number;
  retried: number;
  dead: number;
}

export interface Depth {
  waiting: number;
  running: number;
  delayed: number;
  dead: number;
  lag: number | null;
  oldest_age_ms: number | null;
  next_due_at: number | null;
  consumers: number;
  repeats: number;
  paused: boolean;
  paused_job_names: string[];
}

export interface QueueRow extends Depth {
  name: string;
  error: Problem | null;
  added_per_s: number | null;
  throughput: ThroughputBucket[];
}

export interface Health {
  address: string | null;
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
  can_edit: boolean;
}

export interface Overview {
  connections: Connection[];
  hidden_connections: number;
  page_size: number;
  now: number;
}

export interface DepthSample {
  sampled_at: number;
  waiting: number;
  running: number;
  delayed: number;
  dead: number;
}

export interface QueueSummary extends Depth {
  name: string;
  connection: string;
  can_edit: boolean;
  health: Health;
  added_per_s: number | null;
  throughput: ThroughputBucket[];
  history: DepthSample[];
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
  enqueued_at: number;
  consumer: string | null;
  idle_ms: number | null;
  deliveries: number | null;
  batch_id: string | null;
}

export interface DelayedRow {
  id: string | null;
  name: string;
  size: number;
  due_at: number;
  attempt: number | null;
  created_at: number | null;
  batch_id: string | null;
}

export interface RepeatRow {
  key: string;
  name: string;
  schedule: string;
  next_at: number;
  fired: number;
  limit: number | null;
  end_at: number | null;
  misfire: string;
}

export interface ConsumerGroup {
  name: string;
  is_worker_group: boolean;
  pending: number;
  lag: number | null;
  last_delivered_id: string;
  total: number;
  consumers: { name: string; pending: number; idle_ms: number }[];
}

export interface TaskOrigin {
  dag_id: string;
  run_id: string;
  task_id: string;
  map_index: number;
}

export interface Batch {
  id: string;
  total: number | null;
  parts: number;
  enqueued: number;
  done: number;
  dead: number;
  finished: boolean;
  cancelled_at: number | null;
  created_at: number | null;
  source: string;
  origin: TaskOrigin | null;
  dead_job_ids?: string[];
  can_edit?: boolean;
}

export interface DeadLetter {
  id: string;
  job_id: string | null;
  job_name: string;
  reason: string;
  error: string | null;
  attempts: number | null;
  dead_at: number;
  size: number;
  batch_id: string | null;
  readable: boolean;
}

export interface PayloadText {
  hidden: boolean;
  text: string;
  truncated: boolean;
}

export interface DeadLetterDetail extends DeadLetter {
  detail: string | null;
  source_id: string;
  created_at: number | null;
  payload: PayloadText | null;
}

export interface DeadLetterPage {
  dead_letters: DeadLetter[];
  next_cursor: string | null;
  scanned: number;
  total: number;
}

export interface Facets {
  sampled: number;
  reasons: [string, number][];
  job_names: [string, number][];
}

export interface ChangeResult {
  matched: number;
  affected: number;
  max_replays_reached: number;
  unreadable: number;
  missing: number;
  scanned: number;
  next_cursor: string | null;
  last_id: string | null;
}

export interface JobEvent {
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
  can_edit: boolean;
  id: string;
  state: string;
  search_truncated: boolean;
  name: string;
  attempt: number | null;
  created_at: number | null;
  due_at: number | null;
  entry_id: string | null;
  reason: string | null;
  payload: PayloadText | null;
  result: PayloadText | null;
  progress: unknown;
  dead_letter: DeadLetterDetail | null;
  events: JobEvent[];
  more_events: boolean;
  batch: Batch | null;
  origin: TaskOrigin | null;
}

export interface SentLink extends TaskOrigin {
  sent_at: number;
  connection: string;
  queue: string;
  job_id: string | null;
  batch_id: string | null;
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
  events_last_day: number;
  last_event_at: number | null;
  error: Problem | null;
}
