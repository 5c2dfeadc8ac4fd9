/** The curves of a run: one for its return, or another metric, and one for its losses. Settings are in the address. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { api } from "../../bus/api";
import type { RunState, RunSummary } from "../../bus/types";
import { Curves, type CurveSettings } from "../../parts/curves";
import type { XAxis } from "../../parts/curve";
import { count } from "../../parts/format";
import { query, setQuery } from "../../router";

interface Metrics {
  metrics: Record<string, number>;
  agents: string[];
}

/** By the last part of the name: `losses/value_loss` is one, `losses/clipfrac` is not. */
const LOSSES = /(loss|entropy)[^/]*$/i;
const FIRST_CHOICES = ["episode_return", "reward", "episode_length"];
/** Curves in the second chart; more cannot be told apart. */
const MOST_LOSSES = 8;
const ASK_MS = 5000;
/** Points over which a curve can be smoothed; the slider doubles them. */
const MOST_SMOOTHED = 4096;

function settings(): CurveSettings {
  const given = query.value;
  const x = given.get("x");
  return {
    x: x === "wall" || x === "relative" ? x : "steps",
    logX: given.get("logx") !== null,
    logY: given.get("logy") !== null,
    smoothing: 1 - 1 / Math.min(MOST_SMOOTHED, Math.max(1, Number(given.get("smooth") ?? 16) || 1)),
    maxPoints: given.get("points") === "20000" ? 20_000 : 2000,
    agent: given.get("agent"),
  };
}

function zoomOf(): [number, number] | null {
  const parts = query.value.get("zoom")?.split("-").map(Number);
  return parts?.length === 2 && parts.every(Number.isFinite) ? (parts as [number, number]) : null;
}

function setZoom(steps: [number, number] | null): void {
  setQuery({ zoom: steps ? `${Math.max(0, steps[0])}-${steps[1]}` : null }, { replace: false });
}

export function RunCharts({ run, summary }: { run: RunState; summary: RunSummary | undefined }) {
  const metrics = useMetrics(run, summary);
  const names = Object.keys(metrics.metrics).sort();
  const chosen = query.value.get("metric") ?? FIRST_CHOICES.find((name) => names.includes(name)) ?? names[0];
  const losses = names.filter((name) => LOSSES.test(name));
  const second = query.value.get("second") ?? "losses";
  const below = second === "losses" ? losses.slice(0, MOST_LOSSES) : [second];
  const now = settings();
  const zoom = zoomOf();
  const shared = { run: run.run, settings: now, zoom, onZoom: setZoom };
  return (
    <div class="stack">
      <Controls settings={now} zoom={zoom} agents={metrics.agents} />
      <div class="run-charts">
        <section class="card" aria-label="First chart" id="chart-1">
          <div class="head" hidden={!chosen}>
            <Choice label="Metric" names={names} value={chosen ?? ""} onChoice={(value) => setQuery({ metric: value })} />
            <span class="muted number">{chosen && count(metrics.metrics[chosen] ?? 0)} points</span>
          </div>
          {chosen && summary?.events ? (
            <Curves {...shared} metrics={[chosen]} label={chosen} />
          ) : (
            <p class="muted">No points yet: curves begin with the first step or episode.</p>
          )}
        </section>
        {names.length > 1 && (
          <section class="card" aria-label="Second chart" id="chart-2">
            <div class="head">
              <Choice
                label="Second chart"
                names={losses.length ? ["losses", ...names] : names}
                value={below.length ? second : (names.find((name) => name !== chosen) ?? "")}
                onChoice={(value) => setQuery({ second: value })}
              />
            </div>
            <Curves {...shared} metrics={below.length ? below : [names.find((name) => name !== chosen) as string]} label={second} />
          </section>
        )}
      </div>
    </div>
  );
}

/** The series that the run has; asked again when its summary names a scalar that is not among them. */
function useMetrics(run: RunState, summary: RunSummary | undefined): Metrics {
  const found = useSignal<Metrics>({ metrics: {}, agents: [] });
  const scalars = Object.keys(summary?.scalars ?? {}).sort().join();
  const events = summary?.events ? "some" : "none";
  const beat = Math.floor((summary?.last_event_at ?? 0) / (ASK_MS / 1000));
  useEffect(() => {
    if (events === "none") return; // the store does not know the run yet
    const stop = new AbortController();
    api<Metrics>("telemetry", "metrics", { run: run.run }, stop.signal).then(
      (answer) => (found.value = answer),
      () => {}, // the banner tells if the store is away
    );
    return () => stop.abort();
  }, [run.run, run.state, scalars, events, beat]);
  return found.value;
}

function Choice(props: { label: string; names: string[]; value: string; onChoice: (value: string) => void }) {
  return (
    <select aria-label={props.label} value={props.value} onChange={(event) => props.onChoice(event.currentTarget.value)}>
      {props.names.map((name) => (
        <option key={name} value={name}>
          {name.replaceAll("_", " ")}
        </option>
      ))}
    </select>
  );
}

const AXES: Record<XAxis, string> = { steps: "steps", wall: "clock", relative: "time since start" };

function Controls({ settings: now, zoom, agents }: { settings: CurveSettings; zoom: [number, number] | null; agents: string[] }) {
  const over = Math.round(1 / (1 - now.smoothing));
  const smoothing = over === 1 ? "off" : `${count(over)} points`;
  return (
    <div class="row chart-controls">
      <label class="row">
        x
        <select value={now.x} onChange={(event) => setQuery({ x: event.currentTarget.value })}>
          {Object.entries(AXES).map(([key, words]) => (
            <option key={key} value={key}>
              {words}
            </option>
          ))}
        </select>
      </label>
      <label class="row" title="Mean over about this number of points; all points are drawn behind it">
        Smoothing
        <input
          type="range"
          min={0}
          max={Math.log2(MOST_SMOOTHED)}
          step={1}
          value={Math.log2(over)}
          aria-valuetext={smoothing}
          onInput={(event) => setQuery({ smooth: String(2 ** Number(event.currentTarget.value)) })}
        />
        <span class="muted number">{smoothing}</span>
      </label>
      <button type="button" aria-pressed={now.logY} onClick={() => setQuery({ logy: now.logY ? null : "1" })}>
        log y
      </button>
      <button type="button" aria-pressed={now.logX} onClick={() => setQuery({ logx: now.logX ? null : "1" })}>
        log x
      </button>
      {agents.length > 0 && (
        <label class="row">
          Agent
          <select value={now.agent ?? ""} onChange={(event) => setQuery({ agent: event.currentTarget.value })}>
            <option value="">team</option>
            {agents.map((agent) => (
              <option key={agent} value={agent}>
                {agent}
              </option>
            ))}
          </select>
        </label>
      )}
      {zoom ? (
        <button type="button" onClick={() => setZoom(null)}>
          Show all (now steps {count(zoom[0])} to {count(zoom[1])})
        </button>
      ) : (
        <ZoomFields />
      )}
    </div>
  );
}

/** Zoom without a mouse: two numbers. */
function ZoomFields() {
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    const [first, last] = [Number(form.get("first")), Number(form.get("last"))];
    if (last > first) setZoom([first, last]);
  };
  return (
    <form class="row zoom" onSubmit={submit}>
      <span class="muted">Drag in a chart to zoom, or steps</span>
      <input name="first" type="number" min={0} aria-label="first step" required />
      <input name="last" type="number" min={1} aria-label="last step" required />
      <button type="submit">Zoom</button>
    </form>
  );
}
