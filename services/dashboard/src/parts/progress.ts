/** How far a run is, and when it will be done. */

import { now } from "../bus/states";
import { isFinal, type RunState, type RunSummary } from "../bus/types";

/** From 0 to 1, or null if the run does not say how long it is. */
export function partDone(run: RunState, summary: RunSummary | undefined): number | null {
  if (run.state === "succeeded") return 1;
  if (!summary) return null;
  if (summary.total_steps) return Math.min(1, summary.step / summary.total_steps);
  if (summary.total_episodes) return Math.min(1, summary.episodes / summary.total_episodes);
  return null;
}

/** Seconds that are left, by the present speed. */
export function secondsLeft(run: RunState, summary: RunSummary | undefined): number | null {
  if (!summary || run.state !== "running") return null;
  if (summary.total_steps && summary.steps_per_s > 0) {
    return Math.max(0, (summary.total_steps - summary.step) / summary.steps_per_s);
  }
  const part = partDone(run, summary);
  if (!part || !run.started_at) return null;
  return ((now.value - run.started_at) * (1 - part)) / part;
}

/** Seconds that the newest attempt took, or has taken so far. */
export function took(run: RunState): number | null {
  if (!run.started_at) return null;
  const end = isFinal(run) ? run.ended_at : now.value;
  return end === null ? null : Math.max(0, end - run.started_at);
}
