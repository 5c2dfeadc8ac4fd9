/** Arithmetic on curves before they are drawn: choice of the x axis, smoothing, and one common x for several curves. */

import { upperBound } from "../bus/series";
import type { CurveColumns } from "../bus/types";

export type XAxis = "steps" | "wall" | "relative";

/** A curve to draw. `x` never falls; a bucket of several points has a low and a high. */
export interface Line {
  label: string;
  /** A CSS colour, such as `var(--curve-0)`. */
  colour: string;
  /** Lengths of dashes and gaps; a solid line if it is left out or empty. */
  dash?: number[];
  x: number[];
  y: (number | null)[];
  low: (number | null)[];
  high: (number | null)[];
  /** Drawn over `y` if there is one; `y` then is faint. */
  smooth?: (number | null)[] | null;
  thin?: boolean;
}

export function xOf(curve: CurveColumns, axis: XAxis, start: number): number[] {
  if (axis === "steps") return curve.steps;
  const base = axis === "relative" ? start : 0;
  let last = 0;
  return curve.times.map((time) => (last = Math.max(last, (time ?? 0) - base)));
}

/**
 * Exponential smoothing by points, not by buckets: a bucket of n points moves the mean as n points would. So the line
 * is nearly the same however much the curve is thinned. Corrected for its start (no pull towards zero), unless it
 * begins in the middle of a curve with what was there: `seed`.
 */
export function smooth(curve: CurveColumns, weight: number, seed: Smoothed | null = null): Smoothed[] {
  let sum = seed?.sum ?? 0;
  let mass = seed?.mass ?? 0;
  return curve.values.map((value, i) => {
    if (value !== null && Number.isFinite(value)) {
      const keep = weight ** (curve.counts[i] ?? 1);
      sum = sum * keep + value * (1 - keep);
      mass = mass * keep + (1 - keep);
    }
    return { sum, mass };
  });
}

export interface Smoothed {
  sum: number;
  mass: number;
}

export function smoothedValues(states: Smoothed[]): (number | null)[] {
  return states.map(({ sum, mass }) => (mass > 0 ? sum / mass : null));
}

/** What smoothing of the whole curve had reached before a step, so that a zoom continues it. */
export function seedBefore(whole: CurveColumns, weight: number, step: number): Smoothed | null {
  const end = upperBound(whole.steps, step - 1);
  if (!end) return null;
  return smooth(whole, weight)[end - 1] ?? null;
}

/** The steps that a range of another x axis covers. */
export function stepsOf(curve: CurveColumns, x: number[], low: number, high: number): [number, number] | null {
  const first = Math.max(0, upperBound(x, low) - 1);
  const last = Math.min(x.length - 1, upperBound(x, high));
  const from = curve.steps[first];
  const to = curve.steps[last];
  return from === undefined || to === undefined ? null : [from, to];
}

type Column = (number | null)[];
const GAP = undefined;

/** Put several lines on one x. Points of a line with equal x become one that keeps the lowest and the highest. */
export function align(lines: Line[]): { x: number[]; columns: { y: Column; low: Column; high: Column; smooth: Column }[] } {
  const all = new Set<number>();
  for (const line of lines) for (const x of line.x) all.add(x);
  const x = Float64Array.from(all).sort();
  const place = new Map<number, number>();
  x.forEach((value, i) => place.set(value, i));
  const columns = lines.map((line) => {
    const column = () => new Array<number | null>(x.length).fill(GAP as unknown as null);
    const made = { y: column(), low: column(), high: column(), smooth: column() };
    const met = new Int32Array(x.length);
    line.x.forEach((value, i) => {
      const at = place.get(value) as number;
      const n = (met[at] = (met[at] ?? 0) + 1);
      const y = line.y[i] ?? null;
      made.y[at] = n === 1 || y === null ? (made.y[at] ?? y) : (made.y[at] ?? y) + (y - (made.y[at] ?? y)) / n;
      made.low[at] = least(made.low[at], line.low[i] ?? y);
      made.high[at] = most(made.high[at], line.high[i] ?? y);
      if (line.smooth) made.smooth[at] = line.smooth[i] ?? null;
    });
    return made;
  });
  return { x: Array.from(x), columns };
}

function least(one: number | null | undefined, other: number | null): number | null {
  return one === null || one === undefined ? other : other === null ? one : Math.min(one, other);
}

function most(one: number | null | undefined, other: number | null): number | null {
  return one === null || one === undefined ? other : other === null ? one : Math.max(one, other);
}
