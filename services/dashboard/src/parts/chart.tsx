/** Curves on uPlot: a band from lowest to highest, the points faint behind a smoothed line, zoom by dragging. */

import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { theme } from "../theme";
import { align, type Line } from "./curve";
import { figure } from "./format";
import { resolveColour } from "./palette";

export interface ChartProps {
  lines: Line[];
  /** What the x axis shows: numbers, seconds since 1970, or seconds. */
  x?: "steps" | "wall" | "relative";
  logX?: boolean;
  logY?: boolean;
  height?: number;
  label: string;
  /** Range of x that is shown; all if it is null. */
  range?: [number, number] | null;
  /** The user has dragged over a range, or asked for all with a double click. */
  onZoom?: (range: [number, number] | null) => void;
  /** What to say while there is no point. */
  waiting?: string;
}

export function Chart(props: ChartProps) {
  const { lines, x = "steps", logX = false, logY = false, height = 240, label, range = null, waiting } = props;
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const onZoom = useRef(props.onZoom);
  onZoom.current = props.onZoom;
  const empty = !lines.some((line) => line.x.length);
  // Another set of lines, axis or theme is another plot; new points are only new data.
  const shape = JSON.stringify([lines.map((l) => [l.label, l.colour, l.dash, !!l.smooth, l.thin]), x, logX, logY, height, theme.value, empty]);

  useEffect(() => {
    const at = place.current;
    if (!at || empty) return;
    const made = new uPlot(options(lines, { x, logX, logY, height, width: at.clientWidth }, onZoom), dataOf(lines, logY, logX), at);
    plot.current = made;
    const watcher = new ResizeObserver(() => made.setSize({ width: at.clientWidth, height }));
    watcher.observe(at);
    return () => {
      watcher.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [shape]);

  useEffect(() => {
    if (!plot.current) return;
    plot.current.setData(dataOf(lines, logY, logX), false);
    const xs = plot.current.data[0];
    const [low, high] = range ?? [xs[0] ?? 0, xs.at(-1) ?? 1];
    plot.current.setScale("x", { min: low, max: high > low ? high : low + 1 });
  });

  const points = lines.reduce((sum, line) => sum + line.x.length, 0);
  const highest = lines.flatMap((line) => line.high).reduce<number | null>((top, each) => (each === null || (top !== null && top >= each) ? top : each), null);
  return (
    <div class="chart" data-points={points} data-highest={highest ?? ""} style={{ minHeight: `${height}px` }}>
      <div ref={place} role="img" aria-label={describe(label, lines)} />
      {empty && <div class="waiting">{waiting ?? "No points yet"}</div>}
    </div>
  );
}

/** The picture in words, for people who do not see it. */
function describe(label: string, lines: Line[]): string {
  const ends = lines.map((line) => `${line.label} ${figure(line.y.at(-1) ?? null)}`);
  return `${label}. Last values: ${ends.join(", ") || "none"}.`;
}

function dataOf(lines: Line[], logY: boolean, logX: boolean): uPlot.AlignedData {
  const { x, columns } = align(lines);
  // A logarithm needs positive numbers: what has none is left out.
  const safe = (column: (number | null)[]) => (logY ? column.map((v) => (v === null || v > 0 ? v : null)) : column);
  const data = columns.flatMap((each) => [safe(each.low), safe(each.high), safe(each.y), safe(each.smooth)]);
  const xs = logX ? x.map((value) => Math.max(value, 1)) : x;
  return [xs, ...data] as uPlot.AlignedData;
}

interface Settings {
  x: "steps" | "wall" | "relative";
  logX: boolean;
  logY: boolean;
  height: number;
  width: number;
}

type ZoomRef = { current: ChartProps["onZoom"] };

function options(lines: Line[], settings: Settings, onZoom: ZoomRef): uPlot.Options {
  const { x, logX, logY, width, height } = settings;
  const axis: uPlot.Axis = {
    stroke: resolveColour("var(--muted)"),
    grid: { stroke: resolveColour("var(--line)"), width: 1 },
    ticks: { stroke: resolveColour("var(--line)"), width: 1 },
  };
  const drawn = lines.map((line) => seriesOf(line));
  return {
    width,
    height,
    legend: { show: false },
    cursor: {
      drag: { x: true, y: false, setScale: false },
      bind: {
        dblclick: () => () => {
          onZoom.current?.(null);
          return null;
        },
      },
    },
    scales: {
      x: { time: x === "wall", distr: logX && x !== "wall" ? 3 : 1, auto: false },
      y: { distr: logY ? 3 : 1 },
    },
    axes: [
      { ...axis, ...(x === "relative" ? { values: (_, ticks) => ticks.map(clock) } : x === "steps" ? { values: (_, ticks) => ticks.map(short) } : {}) },
      { ...axis, size: 56, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : figure(tick))) },
    ],
    series: [{}, ...drawn.flat()],
    bands: lines.map((line, i) => ({
      series: [4 * i + 2, 4 * i + 1] as [number, number],
      fill: faint(resolveColour(line.colour), line.smooth ? 0.14 : 0.22),
    })),
    hooks: {
      setSelect: [
        (plot) => {
          const { left, width: chosen } = plot.select;
          if (chosen < 4) return;
          onZoom.current?.([plot.posToVal(left, "x"), plot.posToVal(left + chosen, "x")]);
          plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        },
      ],
    },
  };
}

function seriesOf(line: Line): uPlot.Series[] {
  const colour = resolveColour(line.colour);
  const edge: uPlot.Series = { stroke: "transparent", width: 0, points: { show: false }, spanGaps: true };
  const dash = line.dash ?? [];
  const behind = line.smooth ? faint(colour, 0.35) : colour;
  return [
    edge,
    edge,
    { label: line.label, stroke: behind, width: line.thin || line.smooth ? 1 : 1.5, dash, points: { show: false }, spanGaps: true },
    { stroke: colour, width: 2, dash, points: { show: false }, spanGaps: true, show: !!line.smooth },
  ];
}

function faint(colour: string, alpha: number): string {
  const parts = colour.match(/[\d.]+/g) ?? ["128", "128", "128"];
  return `rgba(${parts.slice(0, 3).join(",")},${alpha})`;
}

function short(value: number | null): string {
  if (value === null) return "";
  const size = Math.abs(value);
  if (size >= 1e9) return `${+(value / 1e9).toPrecision(4)}G`;
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(4)}M`;
  if (size >= 1e4) return `${+(value / 1e3).toPrecision(4)}k`;
  return String(+value.toPrecision(6));
}

function clock(seconds: number | null): string {
  if (seconds === null) return "";
  if (seconds < 60) return `${+seconds.toPrecision(3)} s`;
  if (seconds < 3600) return `${+(seconds / 60).toPrecision(3)} min`;
  return `${+(seconds / 3600).toPrecision(4)} h`;
}
