/** Disk use of runs: their files on the hosts, and their stored events. Asked once for each run that is shown. */

import { signal } from "@preact/signals";
import { api } from "./api";
import { isFinal, type RunState } from "./types";

/** Bytes by run; an ended run never changes, a live one is asked for again. */
export const diskUse = signal<ReadonlyMap<string, number>>(new Map());
const asked = new Set<string>();
let waiting: RunState[] = [];
let timer = 0;

/** Ask for the runs that are in view, once the view has come to rest. */
export function wantDiskUse(shown: readonly RunState[]): void {
  waiting = shown.filter((run) => !asked.has(run.run));
  clearTimeout(timer);
  if (waiting.length) timer = window.setTimeout(() => void ask(), 300);
}

async function ask(): Promise<void> {
  const rows = waiting;
  waiting = [];
  const ids = rows.map((row) => row.run);
  const hosts = new Set(rows.map((row) => row.host).filter((host) => host !== null));
  for (const row of rows) if (isFinal(row)) asked.add(row.run);
  type Answer = { runs: Record<string, number> };
  const answers = await Promise.all([
    api<Answer>("telemetry", "stored_bytes", { runs: ids }).catch(() => null),
    ...[...hosts].map((host) => api<Answer>(`supervisor.${host}`, "disk_use", { runs: ids }).catch(() => null)),
  ]);
  const sums = new Map(diskUse.value);
  for (const id of ids) {
    const known = answers.filter((answer) => answer !== null).map((answer) => answer.runs[id] ?? 0);
    if (known.length) sums.set(id, known.reduce((sum, each) => sum + each, 0));
  }
  diskUse.value = sums;
}
