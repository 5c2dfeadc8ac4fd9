/** Curves of a run, history and live in one line. Applies the chunk rules of docs/gateway.md. */

import { signal, type Signal } from "@preact/signals";
import { follow } from "./connection";
import type { CurveChunk, CurveColumns, RunCurves } from "./types";

const COLUMNS = ["steps", "values", "lows", "highs", "times", "counts"] as const;

export function emptyCurve(): CurveColumns {
  return { steps: [], values: [], lows: [], highs: [], times: [], counts: [] };
}

/** Drop all points with a step greater than `cut`, each of one step. Points are in the order of their steps. */
function cutAfter(curve: CurveColumns, cut: number): void {
  const keep = upperBound(curve.steps, cut);
  for (const column of COLUMNS) curve[column].length = keep;
}

/** Index of the first element that is greater than a value. */
export function upperBound(sorted: readonly number[], value: number): number {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((sorted[middle] as number) <= value) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Insert points by step, after those with the same step. New points nearly always belong at the end. */
function insert(curve: CurveColumns, chunk: CurveColumns): void {
  for (let i = 0; i < chunk.steps.length; i++) {
    const last = curve.steps.length - 1;
    const step = chunk.steps[i] as number;
    if (last < 0 || step >= (curve.steps[last] as number)) {
      for (const column of COLUMNS) (curve[column] as unknown[]).push(chunk[column][i]);
    } else {
      const place = upperBound(curve.steps, step);
      for (const column of COLUMNS) (curve[column] as unknown[]).splice(place, 0, chunk[column][i]);
    }
  }
}

/** What a page has of the curves of one run. It touches no socket, so that the rules can be read in one place. */
export class CurveStore {
  position: number[] = [];
  readonly curves = new Map<string, CurveColumns>();

  /**
   * Apply a chunk. Returns false, and changes nothing, if it does not fit on to what is here: it continues elsewhere, or
   * a new attempt plays a part again and a bucket of several points may lie across the cut.
   */
  take(chunk: RunCurves): boolean {
    if (chunk.since !== null && (!equal(chunk.since, this.position) || (chunk.cut !== null && this.thinned))) return false;
    for (const each of chunk.curves) this.takeCurve(each, chunk.since === null, chunk.cut);
    this.position = chunk.position;
    return true;
  }

  private takeCurve(chunk: CurveChunk, wholeRun: boolean, cut: number | null): void {
    let curve = this.curves.get(chunk.metric);
    if (!curve || chunk.whole || wholeRun) {
      curve = emptyCurve();
      this.curves.set(chunk.metric, curve);
    } else if (cut !== null) {
      cutAfter(curve, cut);
    }
    insert(curve, chunk);
  }

  private get thinned(): boolean {
    return [...this.curves.values()].some((curve) => curve.counts.some((count) => count > 1));
  }

  get longest(): number {
    return Math.max(0, ...[...this.curves.values()].map((curve) => curve.steps.length));
  }
}

function equal(one: readonly number[], other: readonly number[]): boolean {
  return one.length === other.length && one.every((value, index) => value === other[index]);
}

export interface SeriesWatch {
  readonly run: string;
  readonly store: CurveStore;
  /** Grows with every change of the store. Read it in a component to be drawn again. */
  readonly revision: Signal<number>;
  end(): void;
}

/** All series that are being watched. Tests read the points of the page from here. */
export const openSeries = new Set<SeriesWatch>();

export function watchSeries(
  run: string,
  metrics: string[],
  { agent = null, maxPoints = 2000 }: { agent?: string | null; maxPoints?: number } = {},
): SeriesWatch {
  const store = new CurveStore();
  const revision = signal(0);
  let askedForAll = true;
  const askForAll = () => {
    if (askedForAll) return;
    askedForAll = true;
    watch.again();
  };
  const watch = follow({
    ask: () => ({
      type: "watch_series",
      run,
      metrics,
      agent,
      max_points: maxPoints,
      since: askedForAll ? [] : store.position,
    }),
    take: (chunk: RunCurves) => {
      if (askedForAll && chunk.since !== null) return; // sent before the whole was asked for
      askedForAll = false;
      if (!store.take(chunk) || store.longest > 2 * maxPoints) askForAll();
      revision.value += 1;
    },
  });
  const series: SeriesWatch = {
    run,
    store,
    revision,
    end: () => {
      openSeries.delete(series);
      watch.end();
    },
  };
  openSeries.add(series);
  return series;
}
