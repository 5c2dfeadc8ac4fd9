/** Choose groups and runs to compare; the choice is in the address. */

import { useSignal } from "@preact/signals";
import { allRuns, summaryOf } from "../bus/all_runs";
import type { RunState } from "../bus/types";
import { StateBadge } from "../parts/badges";
import { count, figure, shortId } from "../parts/format";
import { query, setQuery } from "../router";

const MOST_SHOWN = 100;

function toggled(key: string, name: string): void {
  const now = new Set((query.peek().get(key) ?? "").split(",").filter(Boolean));
  if (!now.delete(name)) now.add(name);
  setQuery({ [key]: [...now].join(",") });
}

export function Picker({ chosen }: { chosen: RunState[] }) {
  const filter = useSignal("");
  const picked = new Set(chosen.map((run) => run.run));
  const groups = new Map<string, number>();
  for (const run of allRuns.value) if (run.group) groups.set(run.group, (groups.get(run.group) ?? 0) + 1);
  const own = new Set((query.value.get("groups") ?? "").split(","));
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (about: string) => words.every((word) => about.toLowerCase().includes(word));
  const fittingGroups = [...groups].filter(([group]) => fits(group));
  const fitting = allRuns.value.filter((run) => fits(`${run.name} ${run.run} ${run.worker} ${run.group} ${run.state} ${summaryOf(run.run)?.task ?? ""}`));
  const all = () => setQuery({ runs: fitting.slice(0, MOST_SHOWN).map((run) => run.run).join(",") });
  return (
    <details class="card picker" open={!chosen.length || undefined}>
      <summary>
        {chosen.length ? `${count(chosen.length)} runs chosen` : "Choose runs or groups"} <span class="muted">of {count(allRuns.value.length)}</span>
      </summary>
      <div class="row picker-head">
        <label class="row">
          Filter
          <input type="search" value={filter.value} placeholder="name, worker, task, group" onInput={(event) => (filter.value = event.currentTarget.value)} />
        </label>
        <button type="button" class="small" onClick={all} disabled={!fitting.length}>
          Choose the {count(Math.min(fitting.length, MOST_SHOWN))} that fit
        </button>
        <button type="button" class="small" onClick={() => setQuery({ runs: null, groups: null })}>
          Choose none
        </button>
      </div>
      <div class="picker-lists">
        {fittingGroups.length > 0 && (
          <fieldset>
            <legend>Groups</legend>
            {fittingGroups.slice(0, MOST_SHOWN).map(([group, size]) => (
              <label key={group}>
                <input type="checkbox" checked={own.has(group)} onChange={() => toggled("groups", group)} />
                <span class="ellipsis">{group}</span> <span class="muted number">{size} runs</span>
              </label>
            ))}
          </fieldset>
        )}
        <fieldset>
          <legend>Runs</legend>
          {fitting.slice(0, MOST_SHOWN).map((run) => (
            <label key={run.run}>
              <input type="checkbox" checked={picked.has(run.run)} disabled={own.has(run.group) && !!run.group} onChange={() => toggled("runs", run.run)} />
              <span class="ellipsis">{run.name}</span>
              <span class="muted number">
                {shortId(run.run)} · {figure(summaryOf(run.run)?.return_mean)}
              </span>
              <StateBadge state={run.state} />
            </label>
          ))}
          {fitting.length > MOST_SHOWN && <p class="muted">… and {count(fitting.length - MOST_SHOWN)} more: filter.</p>}
        </fieldset>
      </div>
    </details>
  );
}
