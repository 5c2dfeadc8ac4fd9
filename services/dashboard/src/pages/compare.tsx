/** Compare: runs or groups, seeds folded into one line with its interval. The view is in the address. */

import "../styles/compare.css";
import { useComputed, useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { allRuns, wantAllRuns } from "../bus/all_runs";
import { known } from "../bus/states";
import type { RunState } from "../bus/types";
import { Picker } from "../compare/picker";
import { useCollected, metricsOf, type Collected } from "../compare/data";
import { download, toCsv, toPng, toSvg, type Drawing } from "../compare/figure";
import { fold, settingPaths, shortNames, type Setting } from "../compare/folding";
import { Parallel } from "../compare/parallel";
import { foldCurves, gridOver, interpolate, type Folded, type Statistic } from "../compare/statistics";
import { RunTable, SettingTable } from "../compare/tables";
import { Chart } from "../parts/chart";
import { CommandLine, quote } from "../parts/command";
import { smooth, smoothedValues, xOf, type Line } from "../parts/curve";
import { Empty } from "../parts/empty";
import { count } from "../parts/format";
import { Mark } from "../parts/curves";
import { stylesOf, type Style } from "../parts/palette";
import { query, setQuery } from "../router";

const MOST_RUNS = 500;
const SMOOTHINGS = ["0", "0.8", "0.9", "0.97", "0.99"];

function listed(key: string): string[] {
  return (query.value.get(key) ?? "").split(",").filter(Boolean);
}

export function Compare() {
  useEffect(() => wantAllRuns(), []);
  const chosen = useComputed<RunState[]>(() => {
    const runs = new Set(listed("runs"));
    const groups = new Set(listed("groups"));
    return allRuns.value.filter((run) => runs.has(run.run) || (run.group && groups.has(run.group))).slice(0, MOST_RUNS).reverse();
  });
  if (!known.value) return <p class="muted">Waiting for the first news …</p>;
  if (!allRuns.value.length) {
    return (
      <div class="stack">
        <h1>Compare</h1>
        <Empty command="mosaic sweep configs/sweeps/agents.yaml">No runs yet, so there is nothing to compare. Start several:</Empty>
      </div>
    );
  }
  return (
    <div class="stack">
      <h1>Compare</h1>
      <Picker chosen={chosen.value} />
      {chosen.value.length > 0 ? <Comparison chosen={chosen.value} /> : <p class="muted">Choose runs or groups above.</p>}
    </div>
  );
}

interface Drawn {
  setting: Setting;
  folded: Folded;
  members: (number | null)[][];
  style: Style;
}

function Comparison({ chosen }: { chosen: RunState[] }) {
  const metric = query.value.get("metric") ?? "episode_return";
  const axis = query.value.get("x") === "wall" ? "relative" : "steps";
  const statistic: Statistic = query.value.get("stat") === "iqm" ? "iqm" : "mean";
  const by = query.value.get("by") === "run" ? "run" : "setting";
  const weight = Number(query.value.get("smooth") ?? "0.9");
  const collected = useCollected(chosen, metric);
  const names = new Map(chosen.map((run) => [run.run, run.name]));
  const settings = fold(collected.specs, names, by);
  const { grid, drawn } = drawSettings(settings, collected, axis, statistic, weight);
  const thin = query.value.get("members") !== "0" && by === "setting";
  const lines = drawn.flatMap((each) => linesOf(each, grid, thin));
  const drawing: Drawing = {
    title: `${metric}: ${statistic === "iqm" ? "IQM" : "mean"} and 95 % interval over seeds`,
    xLabel: axis === "steps" ? "steps" : "seconds since the start of the run",
    yLabel: metric,
    lines,
  };
  const paths = settingPaths(collected.specs);
  const scored = chosen.map((run) => run.run).filter((run) => collected.scores.has(run) && collected.specs.has(run));
  const colourOf = (run: string) => drawn.find((each) => each.setting.runs.includes(run))?.style.colour ?? "var(--muted)";
  return (
    <>
      {collected.problem && (
        <p class="error" role="alert">
          {collected.problem}
        </p>
      )}
      <section class="card" aria-label="Curves" data-settings={settings.length} data-complete={collected.complete}>
        <Settings runs={chosen.map((run) => run.run)} metric={metric} />
        <Chart
          lines={lines.map((line) => (line.thin ? { ...line, colour: `color-mix(in srgb, ${line.colour} 45%, transparent)` } : line))}
          x={axis}
          height={340}
          label={drawing.title}
          waiting={collected.complete ? `None of these runs has ${metric}` : "Asking for the curves …"}
        />
        <Key drawn={drawn} />
        <Exports drawing={drawing} drawn={drawn} grid={grid} axis={axis} />
      </section>
      <SettingTable settings={settings} collected={collected} styles={new Map(drawn.map((each) => [each.setting.label, each.style]))} names={names} paths={paths} metric={metric} />
      {paths.length > 0 && scored.length > 1 && (
        <section class="card" aria-label="Configuration and result">
          <h2>Configuration and result</h2>
          <Parallel
            runs={scored}
            specs={collected.specs}
            scores={collected.scores}
            paths={paths.slice(0, 8)}
            names={shortNames(paths)}
            colour={colourOf}
            label={(run) => names.get(run) ?? run}
            metric={metric}
          />
        </section>
      )}
      <RunTable chosen={chosen} collected={collected} paths={paths} metric={metric} />
      <CommandLine command={compareCommand(chosen, metric)} />
    </>
  );
}

function compareCommand(chosen: RunState[], metric: string): string {
  const groups = listed("groups");
  const single = chosen.filter((run) => !groups.includes(run.group)).map((run) => run.run.slice(-8));
  const words = ["mosaic compare", ...groups.map(quote), ...single];
  return [...words, ...(metric === "episode_return" ? [] : ["--metric", quote(metric)])].join(" ");
}

function drawSettings(settings: Setting[], collected: Collected, axis: "steps" | "relative", statistic: Statistic, weight: number): { grid: number[]; drawn: Drawn[] } {
  const single = new Map(
    [...collected.curves].map(([run, curve]) => {
      const start = curve.times.find((time) => time !== null) ?? 0;
      const y = weight > 0 ? smoothedValues(smooth(curve, weight)) : curve.values;
      return [run, { x: xOf(curve, axis, start), y }];
    }),
  );
  const grid = gridOver([...single.values()].map((each) => each.x));
  const styles = stylesOf(settings.map((each) => each.label));
  const drawn = settings.map((setting) => {
    const members = setting.runs.flatMap((run) => {
      const own = single.get(run);
      return own ? [interpolate(grid, own.x, own.y)] : [];
    });
    const style = styles.get(setting.label) as Style;
    return { setting, members, style, folded: foldCurves(members, grid.length, statistic) };
  });
  return { grid, drawn };
}

function linesOf({ setting, folded, members, style }: Drawn, grid: number[], thin: boolean): Line[] {
  const none = grid.map(() => null);
  const several = members.length > 1;
  // Where some have not come that far, an interval of two would dwarf the rest: it is drawn from three, or where all are.
  const shown = (column: (number | null)[]) => column.map((each, i) => ((folded.n[i] ?? 0) >= Math.min(3, members.length) ? each : null));
  const behind: Line[] = members.map((y, i) => ({
    label: `${setting.label} ${i}`,
    ...style,
    x: grid,
    y,
    low: none,
    high: none,
    thin: true,
  }));
  const front: Line = {
    label: setting.label,
    ...style,
    x: grid,
    y: folded.centre,
    low: several ? shown(folded.low) : none,
    high: several ? shown(folded.high) : none,
    smooth: folded.centre,
  };
  return [...(thin && several ? behind : []), front];
}

function Key({ drawn }: { drawn: Drawn[] }) {
  return (
    <div class="legend">
      {drawn.map(({ setting, members, style }) => (
        <span key={setting.label}>
          <Mark {...style} />
          {setting.label} <span class="muted number">n = {members.length}</span>
        </span>
      ))}
    </div>
  );
}

function Settings({ runs, metric }: { runs: string[]; metric: string }) {
  const metrics = useSignal<string[]>([]);
  useEffect(() => {
    void metricsOf(runs).then((found) => (metrics.value = found));
  }, [runs.slice(0, 10).join(" ")]);
  const choice = (key: string, label: string, options: [string, string][], fallback: string) => (
    <label class="row">
      {label}
      <select value={query.value.get(key) ?? fallback} onChange={(event) => setQuery({ [key]: event.currentTarget.value === fallback ? null : event.currentTarget.value })}>
        {options.map(([value, text]) => (
          <option key={value} value={value}>
            {text}
          </option>
        ))}
      </select>
    </label>
  );
  const known = [...new Set([metric, "episode_return", ...metrics.value])];
  return (
    <div class="row compare-settings">
      {choice("metric", "Metric", known.map((each) => [each, each]), "episode_return")}
      {choice("by", "One line per", [["setting", "setting (seeds folded)"], ["run", "run"]], "setting")}
      {choice("stat", "Centre", [["mean", "mean"], ["iqm", "IQM"]], "mean")}
      {choice("x", "x", [["steps", "steps"], ["wall", "wall-clock"]], "steps")}
      {choice("smooth", "Smoothing", SMOOTHINGS.map((each) => [each, each === "0" ? "none" : each]), "0.9")}
      {choice("members", "Members", [["1", "thin lines"], ["0", "hidden"]], "1")}
    </div>
  );
}

function Exports({ drawing, drawn, grid, axis }: { drawing: Drawing; drawn: Drawn[]; grid: number[]; axis: string }) {
  const name = drawing.yLabel.replace(/[^\w.-]+/g, "_");
  const asPng = async () => {
    const made = await toPng(drawing);
    if (made) download(`${name}.png`, made);
  };
  const asCsv = () => {
    const rows = drawn.flatMap(({ setting, folded }) =>
      grid.flatMap((x, i) => (folded.n[i] ? [[setting.label, x, folded.centre[i], folded.low[i], folded.high[i], folded.n[i]]] : [])),
    );
    download(`${name}.csv`, toCsv([["setting", axis === "steps" ? "step" : "seconds", "value", "low", "high", "n"], ...rows]), "text/csv");
  };
  return (
    <div class="row exports">
      <span class="muted">Export the curves as</span>
      <button type="button" class="small" onClick={() => download(`${name}.svg`, toSvg(drawing), "image/svg+xml")}>
        SVG
      </button>
      <button type="button" class="small" onClick={() => void asPng()}>
        PNG
      </button>
      <button type="button" class="small" onClick={asCsv}>
        CSV
      </button>
      <span class="spread" />
      <span class="muted number">{count(drawn.reduce((sum, each) => sum + each.members.length, 0))} runs with points</span>
    </div>
  );
}
