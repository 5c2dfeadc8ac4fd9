/** Disk use of runs: their files on the hosts, and their stored events. Asked once for each run that is shown, or sorted by it. */

import { signal } from "@preact/signals";
import { api } from "./api";
import { isFinal, type RunState } from "./types";

/** Bytes by run; an ended run never changes, a live one is asked for again. */
export const diskUse = signal<ReadonlyMap<string, number>>(new Map());
const asked = new Set<string>();
/** Runs that were asked for since a list is sorted by disk use. */
const listed = new Set<string>();
let waiting: RunState[] = [];
let timer = 0;

/** Ask for the runs that are in view, once the view has come to rest. */
export function wantDiskUse(shown: readonly RunState[]): void {
  waiting = shown.filter((run) => !asked.has(run.run));
  clearTimeout(timer);
  if (waiting.length) timer = window.setTimeout(() => void ask(waiting), 300);
}

/** Runs in one question: a host walks the folder of each. */
const ASKED_AT_ONCE = 200;

/** Ask for all runs of a list whose disk use is not known, as a list that is sorted by it needs them. */
export async function loadDiskUse(rows: readonly RunState[]): Promise<void> {
  const missing = rows.filter((run) => !listed.has(run.run) && !diskUse.peek().has(run.run));
  for (const run of missing) listed.add(run.run);
  for (let at = 0; at < missing.length; at += ASKED_AT_ONCE) await ask(missing.slice(at, at + ASKED_AT_ONCE));
}

async function ask(rows: readonly RunState[]): Promise<void> {
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
