/** All runs: the live ones, and older ones that the gateway does not send by itself, asked for when a page needs them. */

import { computed, effect, signal } from "@preact/signals";
import { api } from "./api";
import { known, runs, totalRuns } from "./states";
import type { RunState } from "./types";

const MOST = 100_000;
const older = signal<readonly RunState[]>([]);
const wanted = signal(0);
let asking = false;
let askedFor = -1;

/** Runs of one command have the same time; their ids grow. */
function newestFirst(a: RunState, b: RunState): number {
  return b.submitted_at - a.submitted_at || (b.run > a.run ? 1 : -1);
}

/** Every run that is known, newest first. */
export const allRuns = computed<RunState[]>(() => {
  const live = runs.value;
  const rest = older.value.filter((run) => !live.has(run.run));
  return [...live.values(), ...rest].sort(newestFirst);
});

/** Time for the newest runs to be painted before the older ones are asked for. */
const NEWEST_FIRST_MS = 500;
const painted = signal(false);

/** Load the runs that are not live, as long as somebody shows them. Returns the function that ends it. */
export function wantAllRuns(): () => void {
  wanted.value += 1;
  return () => {
    wanted.value -= 1;
  };
}

/** Ask again, since runs were deleted. */
export function reloadRuns(): void {
  askedFor = -1;
  void load();
}

async function load(): Promise<void> {
  const total = totalRuns.peek();
  if (asking || !wanted.peek() || total <= runs.peek().size || total === askedFor) return;
  asking = true;
  try {
    const found = await api<{ runs: RunState[] }>("scheduler", "runs", { limit: MOST });
    older.value = found.runs;
    askedFor = total;
  } catch {
    // The banner tells that the scheduler is silent; the next change of the counts asks again.
  } finally {
    asking = false;
  }
}

effect(() => {
  if (known.value) window.setTimeout(() => (painted.value = true), NEWEST_FIRST_MS);
});

effect(() => {
  if (totalRuns.value <= runs.value.size) older.value = []; // all are live; some of these may be deleted
  else if (wanted.value && painted.value) void load();
});
