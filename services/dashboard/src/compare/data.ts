/** What a comparison needs of its runs: specifications, scores and curves, and what is new of them while runs go on. */

import { signal, type Signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { api, explain } from "../bus/api";
import { summaryOf } from "../bus/all_runs";
import { CurveStore } from "../bus/series";
import { isFinal, type CurveColumns, type RunCurves, type RunDetail, type RunSpec, type RunState } from "../bus/types";

const AT_ONCE = 8;
const RUNS_PER_QUESTION = 20;
const POINTS = 400;
const AGAIN_MS = 2000;
/** Of a scalar, the score is the mean of so many last points; of returns, telemetry keeps that of 100 episodes. */
const LAST_POINTS = 100;

const specs: Signal<ReadonlyMap<string, RunSpec>> = signal(new Map());

export interface Collected {
  specs: ReadonlyMap<string, RunSpec>;
  curves: ReadonlyMap<string, CurveColumns>;
  scores: ReadonlyMap<string, number>;
  /** Whether everything was asked for once. */
  complete: boolean;
  problem: string;
}

interface Found {
  metric: string;
  /** What is known of each run that was asked for, with the position to which it is known. */
  stores: ReadonlyMap<string, CurveStore>;
  complete: boolean;
}

const curves: Signal<Found> = signal({ metric: "", stores: new Map(), complete: false });
const problem = signal("");

export function useCollected(chosen: RunState[], metric: string): Collected {
  const ids = chosen.map((run) => run.run).join(" ");
  const live = chosen.some(growing);
  useEffect(() => {
    const stop = new AbortController();
    let timer = 0;
    const ask = async () => {
      try {
        await Promise.all([loadSpecs(chosen), loadCurves(chosen, metric, stop.signal)]);
        problem.value = "";
      } catch (error) {
        if (!stop.signal.aborted) problem.value = explain(error);
      }
      if (live && !stop.signal.aborted) timer = window.setTimeout(() => void ask(), AGAIN_MS);
    };
    void ask();
    return () => {
      stop.abort();
      clearTimeout(timer);
    };
  }, [ids, metric, live]);
  const known = new Map(chosen.flatMap((run): [string, RunSpec][] => (specs.value.has(run.run) ? [[run.run, specs.value.get(run.run) as RunSpec]] : [])));
  const found = curvesOf(metric);
  const scores = new Map(
    chosen.flatMap((run): [string, number][] => {
      const score = scoreOf(run.run, metric, found.get(run.run));
      return score === null ? [] : [[run.run, score]];
    }),
  );
  return { specs: known, curves: found, scores, complete: known.size === chosen.length && curves.value.complete, problem: problem.value };
}

/** Whether more points may come: the run goes on, or telemetry has not stored its end. */
function growing(run: RunState): boolean {
  return !isFinal(run) || summaryOf(run.run)?.complete === false;
}

function curvesOf(metric: string): ReadonlyMap<string, CurveColumns> {
  if (curves.value.metric !== metric) return new Map();
  return new Map(
    [...curves.value.stores].flatMap(([run, store]): [string, CurveColumns][] => {
      const curve = store.curves.get(metric);
      return curve?.steps.length ? [[run, curve]] : [];
    }),
  );
}

function scoreOf(run: string, metric: string, curve: CurveColumns | undefined): number | null {
  if (metric === "episode_return") return summaryOf(run)?.return_mean ?? null;
  if (!curve) return null;
  let left = LAST_POINTS;
  let sum = 0;
  let mass = 0;
  for (let i = curve.values.length - 1; i >= 0 && left > 0; i--) {
    const value = curve.values[i];
    const n = Math.min(left, curve.counts[i] ?? 1);
    if (value === null || value === undefined) continue;
    sum += value * n;
    mass += n;
    left -= n;
  }
  return mass ? sum / mass : null;
}

async function loadSpecs(chosen: RunState[]): Promise<void> {
  const missing = chosen.filter((run) => !specs.peek().has(run.run));
  const queue = [...missing];
  const found: [string, RunSpec][] = [];
  const work = async () => {
    for (let run = queue.shift(); run; run = queue.shift()) {
      const detail = await api<RunDetail>("scheduler", "show", { run: run.run });
      found.push([run.run, detail.spec]);
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  if (found.length) specs.value = new Map([...specs.peek(), ...found]);
}

async function loadCurves(chosen: RunState[], metric: string, stop: AbortSignal): Promise<void> {
  const now = curves.peek();
  const stores = new Map(now.metric === metric ? now.stores : []);
  const wanted = chosen.filter((run) => !stores.has(run.run) || growing(run)).map((run) => run.run);
  for (let at = 0; at < wanted.length; at += RUNS_PER_QUESTION) {
    const runs = wanted.slice(at, at + RUNS_PER_QUESTION);
    const since = Object.fromEntries(
      runs.flatMap((run): [string, number[]][] => {
        const store = stores.get(run);
        return store?.position.length && store.longest <= 2 * POINTS ? [[run, store.position]] : [];
      }),
    );
    const args = { runs, metrics: [metric], max_points: POINTS, since };
    // A single run that has no events yet is refused; of several, those without are left out.
    const answer = await api<{ runs: RunCurves[] }>("telemetry", "series", args, stop).catch((error) => {
      if (runs.length === 1 && error.code === "unknown_run") return { runs: [] };
      throw error;
    });
    for (const each of answer.runs) {
      const store = stores.get(each.run) ?? new CurveStore();
      if (store.take(each)) stores.set(each.run, store);
      else if (stores.delete(each.run)) wanted.push(each.run); // it does not fit on to what is here: ask for the whole
    }
  }
  if (!stop.aborted) curves.value = { metric, stores, complete: true };
}

/** The metrics that the chosen runs have, most common first. */
export async function metricsOf(runs: string[]): Promise<string[]> {
  const counted = new Map<string, number>();
  for (const run of runs.slice(0, 10)) {
    const answer = await api<{ metrics: Record<string, number> }>("telemetry", "metrics", { run }).catch(() => ({ metrics: {} }));
    for (const metric of Object.keys(answer.metrics)) counted.set(metric, (counted.get(metric) ?? 0) + 1);
  }
  return [...counted].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1)).map(([metric]) => metric);
}
