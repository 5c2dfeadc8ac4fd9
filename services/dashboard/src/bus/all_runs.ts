/** All runs and their summaries: the live ones, and older ones that the gateway does not send by itself, asked for when a page needs them. */

import { computed, effect, signal } from "@preact/signals";
import { api } from "./api";
import { known, runs, summaries, totalRuns } from "./states";
import { isFinal, type RunState, type RunSummary } from "./types";

const MOST = 100_000;
/** Summaries in one answer: the newest are shown while the next are asked for. */
const SUMMARIES_AT_ONCE = 1000;
const older = signal<readonly RunState[]>([]);
/** The last state of runs that were live: the rows of `older` may have been asked for before they ended. */
const left = signal<ReadonlyMap<string, RunState>>(new Map());
const wanted = signal(0);
let asking = false;
let askedFor = -1;
/** How often what was asked for has become old. */
let outdated = 0;
const olderSummaries = signal<ReadonlyMap<string, RunSummary>>(new Map());
/** Runs whose summary was asked for; one that never began has none. */
const summarized = new Set<string>();

/** Runs of one command have the same time; their ids grow. */
function newestFirst(a: RunState, b: RunState): number {
  return b.submitted_at - a.submitted_at || (b.run > a.run ? 1 : -1);
}

function newer(one: RunState, other: RunState | undefined): RunState {
  return other && other.version > one.version ? other : one;
}

/** Every run that is known, newest first. */
export const allRuns = computed<RunState[]>(() => {
  const live = runs.value;
  const rest = older.value.filter((run) => !live.has(run.run)).map((run) => newer(run, left.value.get(run.run)));
  return [...live.values(), ...rest].sort(newestFirst);
});

/** What telemetry knows of a run, live or old. */
export function summaryOf(run: string): RunSummary | undefined {
  return summaries.value.get(run) ?? olderSummaries.value.get(run);
}

/** Ask for the summaries of runs that are not live; of each once. */
export async function loadSummaries(ids: readonly string[]): Promise<void> {
  const missing = ids.filter((run) => !summaries.peek().has(run) && !summarized.has(run));
  for (let at = 0; at < missing.length; at += SUMMARIES_AT_ONCE) {
    const some = missing.slice(at, at + SUMMARIES_AT_ONCE);
    for (const run of some) summarized.add(run);
    try {
      const found = await api<{ summaries: RunSummary[] }>("telemetry", "summaries", { runs: some, limit: some.length });
      olderSummaries.value = new Map([...olderSummaries.peek(), ...found.summaries.map((each): [string, RunSummary] => [each.run, each])]);
    } catch {
      // The banner tells that telemetry is silent; the next change of the runs asks again.
      for (const run of missing.slice(at)) summarized.delete(run);
      return;
    }
  }
}

/** Time for the newest runs to be painted before the older ones are asked for. */
const NEWEST_FIRST_MS = 500;
const painted = signal(false);

/** Load the runs that are not live, and their summaries, as long as somebody shows them. Returns the function that ends it. */
export function wantAllRuns(): () => void {
  wanted.value += 1;
  return () => {
    wanted.value -= 1;
  };
}

/** Ask again, since what was asked for is old: runs were deleted, or ended unseen. */
export function reloadRuns(): void {
  outdated += 1;
  askedFor = -1;
  void load();
}

async function load(): Promise<void> {
  const total = totalRuns.peek();
  if (asking || !wanted.peek() || total <= runs.peek().size || total === askedFor) return;
  asking = true;
  const began = outdated;
  try {
    const found = await api<{ runs: RunState[] }>("scheduler", "runs", { limit: MOST });
    older.value = found.runs;
    askedFor = total;
  } catch {
    // The banner tells that the scheduler is silent; the next change of the counts asks again.
    return;
  } finally {
    asking = false;
  }
  if (began !== outdated) reloadRuns();
}

effect(() => {
  if (known.value) window.setTimeout(() => (painted.value = true), NEWEST_FIRST_MS);
});

let before = runs.peek();
effect(() => {
  const live = runs.value;
  const gone = [...before.values()].filter((run) => !live.has(run.run));
  before = live;
  if (!gone.length) return;
  left.value = new Map([...left.peek(), ...gone.map((run): [string, RunState] => [run.run, run])]);
  // Of one that left before it was seen to end, nobody here knows how it ended.
  if (!gone.every(isFinal)) reloadRuns();
});

effect(() => {
  if (totalRuns.value <= runs.value.size) older.value = []; // all are live; some of these may be deleted
  else if (wanted.value && painted.value) void load();
});

effect(() => {
  const live = runs.value;
  if (!wanted.value || !older.value.length) return;
  // A live run that others have pushed out of the newest ended ones is an older one from then on.
  const missing = older.value.filter((run) => !live.has(run.run) && !summarized.has(run.run));
  if (missing.length) void loadSummaries(missing.map((run) => run.run));
});
