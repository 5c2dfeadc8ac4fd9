/** One experiment: lineups with intervals that shrink, shards by host, and the report. */

import "../styles/compare.css";
import "../styles/experiments.css";
import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { api, explain } from "../bus/api";
import { role } from "../bus/connection";
import { now } from "../bus/states";
import { asked, experiments, isPlaying, problem, useExperiments, type ExperimentState, type LineupProgress, type ShardProgress } from "../experiments/data";
import { DeleteButton } from "../experiments/delete";
import { Ago, StateBadge } from "../parts/badges";
import { CommandLine } from "../parts/command";
import { confirm } from "../parts/confirm";
import { Empty } from "../parts/empty";
import { count, figure, shortId, span } from "../parts/format";
import { Progress } from "../parts/meter";
import { navigate } from "../router";

const LOOK_MS = 1000;
const MOST_LOOKS = 600;

export function Experiment({ params }: { params: Record<string, string> }) {
  const name = params["name"] as string;
  useExperiments(name);
  const found = experiments.value.get(name);
  if (!found) {
    if (!asked.value) return <p class="muted">Asking for the experiment …</p>;
    return (
      <div class="stack">
        <h1>{name}</h1>
        <Empty command="mosaic experiments">
          {problem.value || `There is no experiment ${name}.`} <a href="/experiments">All experiments</a>, or
        </Empty>
      </div>
    );
  }
  return (
    <div class="stack">
      <Head state={found} />
      <Lineups state={found} />
      {found.shards.length > 0 && <Shards shards={found.shards} />}
      <Report state={found} />
      <CommandLine command={`mosaic experiments show ${name}`} />
    </div>
  );
}

function Head({ state }: { state: ExperimentState }) {
  const playing = isPlaying(state);
  const stop = () =>
    confirm({
      title: `Stop ${state.experiment}`,
      text: "Its shards are stopped. The records so far stay, and a later start plays the rest.",
      command: `mosaic experiments stop ${state.experiment}`,
      action: "Stop experiment",
      danger: true,
      run: () => api("operator", "stop_experiment", { experiment: state.experiment }),
    });
  return (
    <div>
      <div class="page-head">
        <h1>{state.experiment}</h1>
        <StateBadge state={state.state} title={state.reason} />
        <span class="number" id="episodes" data-done={state.done}>
          {count(state.done)} of {count(state.wanted)} episodes
        </span>
        <span class="muted">
          {playing ? `for ${span(now.value - state.started_at)}` : <>took {span((state.ended_at ?? state.started_at) - state.started_at)}, ended <Ago at={state.ended_at} /></>}
        </span>
        <span class="spread" />
        {playing && role.value === "owner" && (
          <button type="button" class="danger" onClick={stop}>
            Stop
          </button>
        )}
        <DeleteButton state={state} done={() => navigate("/experiments")} />
      </div>
      <Progress part={state.wanted ? state.done / state.wanted : 0} label="episodes played" />
      {[state.reason, state.look, ...state.notes].filter(Boolean).map((each) => (
        <p class="muted" key={each}>
          {each}
        </p>
      ))}
      {(state.lost > 0 || state.conflicts > 0) && (
        <p class={state.conflicts ? "error" : "muted"}>
          {state.lost} shards were lost and played again; {state.conflicts} episodes came out differently when played twice.
        </p>
      )}
    </div>
  );
}

function Lineups({ state }: { state: ExperimentState }) {
  const numbers = state.lineups.flatMap((each) => [each.mean_return, each.low, each.high]).filter((each): each is number => typeof each === "number" && Number.isFinite(each));
  const low = Math.min(...numbers);
  const high = Math.max(...numbers);
  const rows = [...state.lineups].sort((a, b) => (b.mean_return ?? -Infinity) - (a.mean_return ?? -Infinity));
  return (
    <section class="card" aria-label="Lineups">
      <div class="scroll" tabIndex={0} role="region" aria-label="table of lineups">
        <table id="lineups">
          <thead>
            <tr>
              <th scope="col">Lineup</th>
              <th scope="col">Episodes</th>
              <th scope="col" class="right">Mean return</th>
              <th scope="col">95 % interval</th>
              <th scope="col" class="strip-head">
                <span class="visually-hidden">Interval drawn</span>
              </th>
              <th scope="col" class="right">Failures</th>
            </tr>
          </thead>
          <tbody>
            {rows.map((row) => (
              <tr key={row.lineup} data-lineup={row.lineup}>
                <td>{row.lineup}</td>
                <td class="number episodes">
                  {count(row.done)} of {count(row.wanted)}
                  <Progress part={row.wanted ? row.done / row.wanted : 0} label={`episodes of ${row.lineup}`} />
                </td>
                <td class="right number">{figure(row.mean_return)}</td>
                <td class="number">{row.low === null || row.low === undefined ? "–" : `[${figure(row.low)}, ${figure(row.high)}]`}</td>
                <td>
                  <Strip row={row} low={low} high={high} />
                </td>
                <td class="right number">{row.failures || (row.given_up ? <span class="error">given up: {row.given_up}</span> : 0)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <p class="muted">Mean over episodes of the sum over agents, with Student's t interval. The report has medians, IQM and comparisons.</p>
    </section>
  );
}

/** The interval as a bar on a scale that all lineups share. */
function Strip({ row, low, high }: { row: LineupProgress; low: number; high: number }) {
  if (row.mean_return === null) return null;
  const part = (value: number) => (high > low ? (100 * (value - low)) / (high - low) : 50);
  const from = part(row.low ?? row.mean_return);
  const to = part(row.high ?? row.mean_return);
  return (
    <span class="strip" aria-hidden="true">
      <span class="bar" style={{ left: `${from}%`, width: `${Math.max(0.8, to - from)}%` }} />
      <span class="dot" style={{ left: `${part(row.mean_return)}%` }} />
    </span>
  );
}

function Shards({ shards }: { shards: ShardProgress[] }) {
  const hosts = [...new Set(shards.map((each) => each.host ?? "not placed yet"))].sort();
  return (
    <section class="card" aria-label="Shards">
      <h2>Shards by host</h2>
      {hosts.map((host) => {
        const own = shards.filter((each) => (each.host ?? "not placed yet") === host);
        return (
          <div key={host} class="shard-host">
            <h3>
              {host} <span class="muted number">{count(own.reduce((sum, each) => sum + each.done, 0))} episodes</span>
            </h3>
            <ul class="shards">
              {own.map((shard) => (
                <li key={shard.number} title={shard.reason}>
                  <a href={`/run/${shard.run}`}>
                    shard {shard.number} <span class="mono">{shortId(shard.run)}</span>
                  </a>
                  <StateBadge state={shard.state} title={shard.reason} />
                  <span class="number muted">
                    {count(shard.done)}/{count(shard.total)}
                  </span>
                  <Progress part={shard.total ? shard.done / shard.total : 0} label={`shard ${shard.number}`} />
                </li>
              ))}
            </ul>
          </div>
        );
      })}
    </section>
  );
}

function Report({ state }: { state: ExperimentState }) {
  const address = `/reports/${state.experiment}/index.html`;
  const there = useSignal<boolean | null>(null);
  const said = useSignal("");
  const busy = useSignal(false);
  // When it was written: a new report is a new frame.
  const number = useSignal(0);
  const look = async () => {
    const about = await fetch(`/reports/${state.experiment}`).then((answer) => answer.json(), () => null);
    there.value = typeof about?.written_at === "number";
    number.value = about?.written_at ?? 0;
  };
  const write = async () => {
    busy.value = true;
    said.value = "";
    const before = number.value;
    try {
      await api("operator", "write_report", { experiment: state.experiment });
      // A large one is answered before it is there.
      for (let tried = 0; tried < MOST_LOOKS && number.value === before; tried++) {
        if (tried) await new Promise((done) => window.setTimeout(done, LOOK_MS));
        await look();
      }
    } catch (error) {
      said.value = explain(error);
    }
    busy.value = false;
  };
  useEffect(() => void look(), [state.experiment, state.state]);
  if (!state.done) return null;
  return (
    <section class="card" aria-label="Report">
      <div class="head">
        <h2>Report</h2>
        <span class="muted">{there.value ? "" : isPlaying(state) ? "It can be written at any time; it has what was played so far." : "Not written yet."}</span>
        <span class="spread" />
        {there.value && (
          <a class="button" href={address} target="_blank" rel="noopener">
            Open in a new tab
          </a>
        )}
        {role.value === "owner" && (
          <button type="button" class={there.value ? "" : "primary"} id="write-report" disabled={busy.value} onClick={() => void write()}>
            {busy.value ? "Writing …" : there.value ? "Rewrite the report" : "Write the report"}
          </button>
        )}
      </div>
      {said.value && (
        <p class="error" role="alert">
          {said.value}
        </p>
      )}
      {there.value && <iframe key={number.value} class="report" title={`report of ${state.experiment}`} src={address} sandbox="allow-same-origin allow-downloads" />}
      <CommandLine command={`mosaic report ${state.experiment}`} />
    </section>
  );
}
