/** Parallel coordinates: one line per run through the values of its configuration to its score. */

import type { RunSpec } from "../bus/types";
import { figure } from "../parts/format";
import { text, valueAt } from "./folding";

const WIDTH = 900;
const HEIGHT = 260;
const TOP = 34;
const BOTTOM = 30;

interface Axis {
  name: string;
  /** The place of each run, from 0 (bottom) to 1. */
  place(run: string): number | null;
  ends: { at: number; text: string }[];
}

export interface ParallelProps {
  runs: string[];
  specs: ReadonlyMap<string, RunSpec>;
  scores: ReadonlyMap<string, number>;
  paths: string[];
  names: ReadonlyMap<string, string>;
  colour: (run: string) => string;
  label: (run: string) => string;
  metric: string;
}

export function Parallel({ runs, specs, scores, paths, names, colour, label, metric }: ParallelProps) {
  const axes = [
    ...paths.map((path) => axisOf(names.get(path) ?? path, new Map(runs.map((run) => [run, valueAt(specs.get(run) as RunSpec, path)])))),
    axisOf(metric, new Map(runs.map((run) => [run, scores.get(run)]))),
  ];
  const x = (i: number) => 60 + (i * (WIDTH - 120)) / Math.max(1, axes.length - 1);
  const y = (place: number) => HEIGHT - BOTTOM - place * (HEIGHT - TOP - BOTTOM);
  return (
    <div class="parallel" tabIndex={0} role="region" aria-label="Parallel coordinates">
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={`Configuration values of ${runs.length} runs and their ${metric}; the table of runs below has the same numbers`}>
        {runs.map((run) => {
          const points = axes.flatMap((axis, i) => {
            const place = axis.place(run);
            return place === null ? [] : [`${x(i)},${y(place)}`];
          });
          return (
            <polyline key={run} points={points.join(" ")} style={{ stroke: colour(run) }}>
              <title>{`${label(run)}: ${figure(scores.get(run))}`}</title>
            </polyline>
          );
        })}
        {axes.map((axis, i) => (
          <g key={axis.name}>
            <line x1={x(i)} x2={x(i)} y1={TOP} y2={HEIGHT - BOTTOM} />
            <text class="name" x={x(i)} y={16}>
              {axis.name}
            </text>
            {axis.ends.map((end) => (
              <text key={end.text} x={i ? x(i) + 6 : x(i) - 6} y={y(end.at) + 4} class={i ? "tick" : "tick before"}>
                {end.text}
              </text>
            ))}
          </g>
        ))}
      </svg>
    </div>
  );
}

/** Numbers lie by their size (by their logarithm if they span a factor of 100), other values side by side. */
function axisOf(name: string, values: ReadonlyMap<string, unknown>): Axis {
  const given = [...values.values()].filter((each) => each !== undefined && each !== null);
  const numbers = given.filter((each): each is number => typeof each === "number");
  if (numbers.length === given.length && numbers.length) {
    const low = Math.min(...numbers);
    const high = Math.max(...numbers);
    const scale = low > 0 && high / low >= 100 ? Math.log : (value: number) => value;
    const part = (value: number) => (high > low ? (scale(value) - scale(low)) / (scale(high) - scale(low)) : 0.5);
    const ends = high > low ? [low, high] : [low];
    return {
      name,
      place: (run) => (typeof values.get(run) === "number" ? part(values.get(run) as number) : null),
      ends: ends.map((each) => ({ at: part(each), text: figure(each) })),
    };
  }
  const kinds = [...new Set(given.map(text))].sort();
  const part = (value: string) => (kinds.length > 1 ? kinds.indexOf(value) / (kinds.length - 1) : 0.5);
  return {
    name,
    place: (run) => (values.get(run) === undefined || values.get(run) === null ? null : part(text(values.get(run)))),
    ends: kinds.slice(0, 12).map((kind) => ({ at: part(kind), text: kind.slice(0, 24) })),
  };
}
