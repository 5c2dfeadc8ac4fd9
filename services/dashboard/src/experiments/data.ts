/** Experiments as the operator service tells them: pushed while they are played, asked for otherwise. */

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { api, explain } from "../bus/api";
import { hearStates } from "../bus/connection";

export interface LineupProgress {
  lineup: string;
  done: number;
  wanted: number;
  mean_return: number | null;
  low?: number | null;
  high?: number | null;
  failures: number;
  given_up: string;
}

export interface ShardProgress {
  number: number;
  run: string;
  state: string;
  host: string | null;
  done: number;
  total: number;
  reason: string;
}

export interface ExperimentState {
  experiment: string;
  state: "running" | "stopping" | "finished" | "stopped" | "failed";
  reason: string;
  done: number;
  wanted: number;
  lineups: LineupProgress[];
  shards: ShardProgress[];
  lost: number;
  conflicts: number;
  started_at: number;
  ended_at: number | null;
  folder: string;
  look: string;
  notes: string[];
  version: number;
}

/** Time between two questions. What is played comes by itself; this finds what was begun before the gateway was. */
const AGAIN_MS = 5000;
export const experiments = signal<ReadonlyMap<string, ExperimentState>>(new Map());
export const asked = signal(false);
export const problem = signal("");

export function isPlaying(state: ExperimentState): boolean {
  return state.state === "running" || state.state === "stopping";
}

function take(rows: ExperimentState[], { whole = false } = {}): void {
  const next = new Map(whole ? [] : experiments.peek());
  for (const row of rows) {
    const before = experiments.peek().get(row.experiment);
    const newer = !before || row.started_at > before.started_at || row.version >= before.version;
    // The list has no shards; those that are known stay.
    next.set(row.experiment, newer ? { ...row, shards: row.shards.length ? row.shards : (before?.shards ?? []) } : before);
  }
  experiments.value = next;
}

/** It was deleted; the next answer to a question would tell the same, a moment later. */
export function forget(name: string): void {
  experiments.value = new Map([...experiments.peek()].filter(([each]) => each !== name));
}

hearStates((message) => {
  if (message.experiments?.length) take(message.experiments);
});

/** Ask for all experiments, and for one with its shards, as long as a page shows them. */
export function useExperiments(name: string | null = null): void {
  useEffect(() => {
    let timer = 0;
    let over = false;
    const ask = async () => {
      try {
        take((await api<{ experiments: ExperimentState[] }>("operator", "experiments", {})).experiments, { whole: true });
        if (name && !over && experiments.peek().has(name)) take([await api<ExperimentState>("operator", "show_experiment", { experiment: name })]);
        problem.value = "";
      } catch (error) {
        problem.value = explain(error);
      }
      asked.value = true;
      if (!over) timer = window.setTimeout(() => void ask(), AGAIN_MS);
    };
    void ask();
    return () => {
      over = true;
      clearTimeout(timer);
    };
  }, [name]);
}
