/** Everything that has a state: runs, their summaries, hosts, services, builds and counts, as signals. */

import { computed, signal } from "@preact/signals";
import { hearStates, link } from "./connection";
import type { BuildProgress, HostState, RunState, RunSummary, ServiceState } from "./types";

type Table<Row> = ReadonlyMap<string, Row>;

/** Whether the first `states` message has come. */
export const known = signal(false);
/** All unfinished runs and the newest ended ones, by id. */
export const runs = signal<Table<RunState>>(new Map());
export const summaries = signal<Table<RunSummary>>(new Map());
export const hosts = signal<Table<HostState>>(new Map());
export const services = signal<Table<ServiceState>>(new Map());
/** Builds of environments, by `host/worker/profile`. */
export const builds = signal<Table<BuildProgress>>(new Map());
/** How many runs of each state the scheduler has, also those that are not in `runs`. */
export const counts = signal<Record<string, number>>({});
/** Services that the gateway does not hear, and for how many seconds. */
export const silent = signal<Record<string, number>>({});

/** Seconds since 1970; stands still while the connection is gone, so that no age grows for want of news. */
export const now = signal(Date.now() / 1000);
export const totalRuns = computed(() => Object.values(counts.value).reduce((sum, each) => sum + each, 0));

function merged<Row>(before: Table<Row>, rows: Row[], key: (row: Row) => string, gone: string[]): Table<Row> {
  if (!rows.length && !gone.length) return before;
  const after = new Map(before);
  for (const row of rows) after.set(key(row), row);
  for (const name of gone) after.delete(name);
  return after;
}

function take(message: any): void {
  const from = <Row>(table: Table<Row>): Table<Row> => (message.whole ? new Map() : table);
  const gone: string[] = message.gone ?? [];
  runs.value = merged(from(runs.value), message.runs, (row: RunState) => row.run, gone);
  summaries.value = merged(from(summaries.value), message.summaries, (row: RunSummary) => row.run, gone);
  hosts.value = merged(from(hosts.value), message.hosts, (row: HostState) => row.host, []);
  if (message.services) {
    services.value = merged(from(services.value), message.services, (row: ServiceState) => row.service, []);
    countEvents();
  }
  if (message.builds) {
    const key = (row: BuildProgress) => `${row.host}/${row.worker}/${row.profile}`;
    builds.value = merged(from(builds.value), message.builds, key, []);
  }
  counts.value = message.counts;
  silent.value = message.silent;
  known.value = true;
}

/** Events that telemetry stores per second. */
export const eventsPerSecond = signal<number | null>(null);
const HEARTBEATS_S = 4;
let lastCount: { at: number; events: number } | null = null;

function countEvents(): void {
  const events = services.value.get("telemetry")?.counters["stored"];
  if (events === undefined) return;
  const at = performance.now() / 1000;
  // Messages come more often than telemetry's heartbeats: an equal count is news only after some of those.
  if (lastCount && events === lastCount.events && at - lastCount.at < HEARTBEATS_S) return;
  if (lastCount && events >= lastCount.events) {
    eventsPerSecond.value = (events - lastCount.events) / (at - lastCount.at);
  }
  lastCount = { at, events };
}

export function startStates(): void {
  hearStates(take);
  window.setInterval(() => {
    if (link.value === "open") now.value = Date.now() / 1000;
  }, 1000);
}
