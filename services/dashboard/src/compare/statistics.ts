/** Mean and interquartile mean with 95 % intervals, of numbers and of curves; as `mosaic compare` defines them. Pure. */

export type Interval = [number, number] | null;

export function mean(values: readonly number[]): number {
  return values.reduce((sum, each) => sum + each, 0) / values.length;
}

/** The mean of the middle half. */
export function iqm(values: readonly number[]): number {
  const ordered = [...values].sort((a, b) => a - b);
  const cut = Math.floor(ordered.length * 0.25);
  return mean(ordered.slice(cut, ordered.length - cut));
}

export function median(values: readonly number[]): number {
  const ordered = [...values].sort((a, b) => a - b);
  const half = ordered.length >> 1;
  return ordered.length % 2 ? (ordered[half] as number) : ((ordered[half - 1] as number) + (ordered[half] as number)) / 2;
}

/** Quantiles of Student's t at 0.975 for 1, 2, … degrees of freedom; beyond the table, an expansion around the normal one. */
const T_975 = [12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.306, 2.2622, 2.2281, 2.201, 2.1788, 2.1604, 2.1448, 2.1314];

export function tQuantile(freedom: number): number {
  const known = T_975[freedom - 1];
  if (known !== undefined) return known;
  const z = 1.959964;
  return z + (z ** 3 + z) / (4 * freedom) + (5 * z ** 5 + 16 * z ** 3 + 3 * z) / (96 * freedom ** 2);
}

/** Student's t interval of a mean; null for a single value. */
export function tInterval(values: readonly number[]): Interval {
  const n = values.length;
  if (n < 2) return null;
  const centre = mean(values);
  const deviation = Math.sqrt(values.reduce((sum, each) => sum + (each - centre) ** 2, 0) / (n - 1));
  const half = (tQuantile(n - 1) * deviation) / Math.sqrt(n);
  return [centre - half, centre + half];
}

/** Random numbers with a fixed seed, so that the same runs give the same interval. */
function generator(): () => number {
  let state = 0x9e3779b9;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

/** Percentile bootstrap interval of the interquartile mean; null for a single value. */
export function iqmInterval(values: readonly number[], draws = 2000): Interval {
  const n = values.length;
  if (n < 2) return null;
  const random = generator();
  const found = new Float64Array(draws);
  for (let i = 0; i < draws; i++) found[i] = iqm(Array.from({ length: n }, () => values[Math.floor(random() * n)] as number));
  found.sort();
  return [quantile(found, 0.025), quantile(found, 0.975)];
}

function quantile(ordered: Float64Array, share: number): number {
  const at = share * (ordered.length - 1);
  const low = Math.floor(at);
  const one = ordered[low] as number;
  return one + (at - low) * ((ordered[Math.min(low + 1, ordered.length - 1)] as number) - one);
}

export type Statistic = "mean" | "iqm";

/** Points to which the curves of a comparison are brought. */
export const GRID = 200;
const CURVE_DRAWS = 200;

export function gridOver(xs: readonly (readonly number[])[], points = GRID): number[] {
  const ends = xs.filter((each) => each.length);
  const low = Math.min(...ends.map((each) => each[0] as number));
  const high = Math.max(...ends.map((each) => each.at(-1) as number));
  if (!ends.length || !(high > low)) return ends.length ? [low] : [];
  return Array.from({ length: points }, (_, i) => low + ((high - low) * i) / (points - 1));
}

/** The values of a curve at the points of a grid; null outside of it. `x` never falls. */
export function interpolate(grid: readonly number[], x: readonly number[], y: readonly (number | null)[]): (number | null)[] {
  const known = x.flatMap((at, i) => (y[i] === null || y[i] === undefined ? [] : [{ at, value: y[i] as number }]));
  let next = 0;
  return grid.map((at) => {
    while (next < known.length && (known[next] as { at: number }).at < at) next += 1;
    const after = known[next];
    const before = known[next - 1];
    if (after && after.at === at) return after.value;
    if (!after || !before) return null;
    return before.value + ((after.value - before.value) * (at - before.at)) / (after.at - before.at);
  });
}

export interface Folded {
  centre: (number | null)[];
  low: (number | null)[];
  high: (number | null)[];
  /** How many curves have come that far. */
  n: number[];
}

/** One curve of several: at each point of the grid, over those that have come that far. */
export function foldCurves(rows: readonly (readonly (number | null)[])[], points: number, statistic: Statistic): Folded {
  const folded: Folded = { centre: [], low: [], high: [], n: [] };
  for (let i = 0; i < points; i++) {
    const values = rows.flatMap((row) => (row[i] === null || row[i] === undefined ? [] : [row[i] as number]));
    const interval = statistic === "mean" ? tInterval(values) : iqmInterval(values, CURVE_DRAWS);
    const centre = values.length ? (statistic === "mean" ? mean(values) : iqm(values)) : null;
    folded.centre.push(centre);
    folded.low.push(interval ? interval[0] : centre);
    folded.high.push(interval ? interval[1] : centre);
    folded.n.push(values.length);
  }
  return folded;
}
