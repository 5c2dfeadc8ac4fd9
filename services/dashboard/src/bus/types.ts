/** Bodies of messages and results of commands that the pages read. docs/messages.md describes every field. */

export type RunStateName =
  | "queued"
  | "preparing"
  | "starting"
  | "running"
  | "stopping"
  | "succeeded"
  | "failed"
  | "cancelled"
  | "lost";

export const FINAL_STATES: readonly RunStateName[] = ["succeeded", "failed", "cancelled", "lost"];

export function isFinal(run: { state: RunStateName }): boolean {
  return FINAL_STATES.includes(run.state);
}

export interface RunState {
  run: string;
  name: string;
  worker: string;
  profile: string;
  state: RunStateName;
  reason: string;
  category: string | null;
  attempt: number;
  host: string | null;
  submitted_at: number;
  changed_at: number;
  started_at: number | null;
  ended_at: number | null;
  exit_code: number | null;
  detail: string;
  priority: number;
  group: string;
  attempts: number;
  next_attempt_at: number | null;
  replaces: string;
  version: number;
}

export interface RunSummary {
  run: string;
  attempt: number;
  task: string;
  events: number;
  step: number;
  total_steps: number | null;
  episodes: number;
  total_episodes: number | null;
  steps_per_s: number;
  return_last: number | null;
  return_mean: number | null;
  return_std: number | null;
  returns: number[];
  agents: Record<string, { episodes: number; return_last: number | null; return_mean: number | null }>;
  scalars: Record<string, number>;
  malformed: number;
  last_event_at: number | null;
  last_heartbeat_at: number | null;
  checkpoint: string | null;
  outcome: string | null;
  complete: boolean;
  received: number;
  repaired: number;
  missing: number;
}

export interface Resources {
  cpus: number;
  memory_mb: number;
  gpus: number;
}

export interface Usage {
  cpu_percent: number;
  rss_mb: number;
  processes: number;
}

export interface AttemptReport {
  run: string;
  attempt: number;
  phase: string;
  detail: string;
  resources: Resources;
  gpus: Record<string, number>;
  started_at: number | null;
  usage: Usage;
  warnings: string[];
}

export interface EnvironmentStatus {
  worker: string;
  profile: string;
  status: "available" | "building" | "installed" | "broken";
  detail: string;
}

export interface HostState {
  host: string;
  draining: boolean;
  total: Resources;
  gpus: { id: string; name: string; memory_mb: number }[];
  tags: string[];
  environments: EnvironmentStatus[];
  attempts: AttemptReport[];
  cpu_percent: number;
  memory_used_mb: number;
}

export interface ServiceState {
  service: string;
  pid: number;
  started_at: number;
  status: "ok" | "degraded" | "stopping";
  detail: string;
  counters: Record<string, number>;
}

export interface BuildProgress {
  host: string;
  worker: string;
  profile: string;
  step: string;
  percent: number;
  done: boolean;
  error: string;
}

export interface RunSpec {
  worker: string;
  profile: string;
  config: Record<string, unknown>;
  name: string;
  resources: Resources;
  limits: { memory_mb: number | null; wall_s: number | null };
  retries: { max: number; on: (string | number)[]; delay_s: number };
  grace_s: number;
  priority: number;
  after: string[];
  requires: string[];
  group: string;
  [field: string]: unknown;
}

export interface Decision {
  at: number;
  event: string;
  reason: string;
}

export interface RunDetail {
  run: RunState;
  spec: RunSpec;
  attempts: Record<string, unknown>[];
  decisions: Decision[];
}

export interface WhyResult {
  run: RunState;
  answer: string;
  facts: string[];
  position: number | null;
  log: string[];
  decisions: Decision[];
}

/** A curve as the store gives it: each point is a bucket of `counts[i]` points. */
export interface CurveColumns {
  steps: number[];
  values: (number | null)[];
  lows: (number | null)[];
  highs: (number | null)[];
  times: (number | null)[];
  counts: number[];
}

export interface CurveChunk extends CurveColumns {
  metric: string;
  points: number;
  whole: boolean;
}

export interface RunCurves {
  run: string;
  since: number[] | null;
  position: number[];
  cut: number | null;
  curves: CurveChunk[];
}

export interface Rows<Row = Record<string, unknown>> {
  rows: Row[];
  next: number | null;
}

export interface LogRow {
  number: number;
  line: string;
}

/** The head of a frame: what is known of the picture that follows it. */
export interface FrameHead {
  id: number;
  run: string;
  attempt: number;
  stream: string;
  number: number;
  wall: number;
  step: number;
  episode: number;
  last_reward: number | null;
  rolling_return: number | null;
  step_rate_hz: number | null;
}
