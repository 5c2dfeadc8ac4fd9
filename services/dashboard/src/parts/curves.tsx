/** Curves of one run with history and live in one line. A zoom asks the store again, so that nothing stays thinned. */

import { useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { api } from "../bus/api";
import { emptyCurve, watchSeries } from "../bus/series";
import type { CurveColumns, RunCurves } from "../bus/types";
import { Chart } from "./chart";
import { seedBefore, smooth, smoothedValues, stepsOf, xOf, type Line, type XAxis } from "./curve";
import { figure } from "./format";
import { stylesOf, type Style } from "./palette";

export interface CurveSettings {
  x: XAxis;
  logX: boolean;
  logY: boolean;
  /** From 0 (none) to 0.999: what each point keeps of the smoothed value before it. */
  smoothing: number;
  maxPoints: number;
  agent: string | null;
}

export interface CurvesProps {
  run: string;
  metrics: string[];
  settings: CurveSettings;
  label: string;
  height?: number;
  /** The steps that are shown, or null for all. */
  zoom: [number, number] | null;
  onZoom: (steps: [number, number] | null) => void;
}

/** Time between two questions for a zoomed range to which the run still adds. */
const ASK_AGAIN_MS = 2000;

export function Curves({ run, metrics, settings, label, height, zoom, onZoom }: CurvesProps) {
  const { agent, maxPoints } = settings;
  const names = metrics.join("\n");
  const watch = useMemo(() => watchSeries(run, metrics, { agent, maxPoints }), [run, names, agent, maxPoints]);
  useEffect(() => () => watch.end(), [watch]);
  void watch.revision.value;
  const whole = (metric: string) => watch.store.curves.get(metric) ?? emptyCurve();
  const last = Math.max(-1, ...metrics.map((metric) => whole(metric).steps.at(-1) ?? -1));
  const detail = useZoom(run, metrics, settings, zoom, last);
  const start = Math.min(...metrics.map((metric) => firstTime(whole(metric))));
  const styles = stylesOf(metrics);
  const lines = metrics.map((metric) => {
    const curve = detail?.get(metric) ?? whole(metric);
    const seed = detail ? seedBefore(whole(metric), settings.smoothing, curve.steps[0] ?? 0) : null;
    return lineOf(metric, curve, settings, start, styles.get(metric) as Style, seed);
  });
  const takeZoom = (range: [number, number] | null) => {
    if (!range) return onZoom(null);
    const longest = metrics.map(whole).reduce((a, b) => (b.steps.length > a.steps.length ? b : a), emptyCurve());
    if (settings.x === "steps") onZoom([Math.floor(range[0]), Math.ceil(range[1])]);
    else onZoom(stepsOf(longest, xOf(longest, settings.x, start), range[0], range[1]));
  };
  return (
    <>
      <Chart
        lines={lines}
        x={settings.x}
        logX={settings.logX}
        logY={settings.logY}
        label={label}
        range={zoom && settings.x === "steps" ? zoom : null}
        onZoom={takeZoom}
        {...(height ? { height } : {})}
      />
      <Legend lines={lines} />
    </>
  );
}

function firstTime(curve: CurveColumns): number {
  return curve.times.find((time) => time !== null) ?? Number.POSITIVE_INFINITY;
}

function lineOf(
  metric: string,
  curve: CurveColumns,
  settings: CurveSettings,
  start: number,
  style: Style,
  seed: ReturnType<typeof seedBefore>,
): Line {
  const { smoothing } = settings;
  return {
    label: metric,
    ...style,
    x: xOf(curve, settings.x, start),
    y: curve.values,
    low: curve.lows,
    high: curve.highs,
    smooth: smoothing > 0 ? smoothedValues(smooth(curve, smoothing, seed)) : null,
  };
}

/** The points of a range of steps, as fine as the store has them; null while there is no zoom. */
function useZoom(
  run: string,
  metrics: string[],
  { agent, maxPoints }: CurveSettings,
  zoom: [number, number] | null,
  last: number,
): Map<string, CurveColumns> | null {
  const found = useSignal<Map<string, CurveColumns> | null>(null);
  const newest = useRef(last);
  newest.current = last;
  const [first, end] = zoom ?? [null, null];
  const names = metrics.join("\n");
  useEffect(() => {
    if (first === null || end === null) return;
    const stop = new AbortController();
    let askedAt = -1;
    const ask = async () => {
      // A range that ends before the newest step cannot change any more, and neither can one of a run that stands still.
      if (askedAt > end || (askedAt >= 0 && askedAt === newest.current)) return;
      askedAt = newest.current;
      const args = { runs: [run], metrics, agent, max_points: maxPoints, first_step: first, last_step: end };
      const answer = await api<{ runs: RunCurves[] }>("telemetry", "series", args, stop.signal).catch(() => null);
      if (!answer) askedAt = -1; // the store may be away for a moment
      else if (!stop.signal.aborted) {
        found.value = new Map((answer.runs[0]?.curves ?? []).map((curve) => [curve.metric, curve]));
      }
    };
    void ask();
    const timer = window.setInterval(() => void ask(), ASK_AGAIN_MS);
    return () => {
      clearInterval(timer);
      stop.abort();
      found.value = null;
    };
  }, [run, names, agent, maxPoints, first, end]);
  return zoom ? found.value : null;
}

/** A piece of a line, as it is drawn. */
export function Mark({ colour, dash = [] }: { colour: string; dash?: number[] }) {
  return (
    <svg class="mark" width="26" height="4" aria-hidden="true">
      <line x1="0" y1="2" x2="26" y2="2" stroke={colour} stroke-width="3" stroke-dasharray={dash.join(" ")} />
    </svg>
  );
}

export function Legend({ lines }: { lines: Line[] }) {
  // What all names begin with says nothing in a list of them.
  const prefix = lines[0]?.label.match(/^.*\//)?.[0] ?? "";
  const shared = lines.length > 1 && lines.every((line) => line.label.startsWith(prefix)) ? prefix.length : 0;
  return (
    <div class="legend">
      {lines.map((line) => (
        <span key={line.label}>
          <Mark {...line} />
          {line.label.slice(shared)} <span class="number muted">{figure((line.smooth ?? line.y).at(-1))}</span>
        </span>
      ))}
    </div>
  );
}
