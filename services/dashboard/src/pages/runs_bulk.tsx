/** What can be done with the runs that were chosen: cancel, rerun, delete. Each asks, and shows its command. */

import { useSignal, type ReadonlySignal } from "@preact/signals";
import { allRuns, reloadRuns } from "../bus/all_runs";
import { api, explain } from "../bus/api";
import { diskUse } from "../bus/disk";
import { now } from "../bus/states";
import { isFinal, type RunState } from "../bus/types";
import { confirm } from "../parts/confirm";
import { bytes, count } from "../parts/format";

/** Runs in one `delete` command: each takes a moment, and a command has a time limit. */
const DELETE_BATCH = 100;
/** Names in a command that is shown; nobody reads more. */
const MOST_NAMED = 12;

function words(runs: RunState[]): string {
  const ids = runs.slice(0, MOST_NAMED).map((run) => run.run);
  return ids.join(" ") + others(runs);
}

function others(runs: RunState[]): string {
  return runs.length > MOST_NAMED ? ` … (${runs.length} in all)` : "";
}

/** Do something with each run; go on after a refusal, and then tell all of them. */
async function each(runs: RunState[], act: (run: RunState) => Promise<unknown>): Promise<void> {
  const refused: string[] = [];
  for (const run of runs) await act(run).catch((error) => refused.push(`${run.name}: ${explain(error)}`));
  if (refused.length) throw new Error(refused.join("\n"));
}

export function cancelRuns(runs: RunState[], done: () => void = () => {}): void {
  confirm({
    title: runs.length === 1 ? `Cancel ${runs[0]?.name}?` : `Cancel ${count(runs.length)} runs?`,
    text: `${runs.length === 1 ? "It" : "Each"} is asked to stop, and ended after its grace period. What it has stored stays.`,
    command: `mosaic cancel ${words(runs)}`,
    action: runs.length === 1 ? "Cancel run" : `Cancel ${runs.length} runs`,
    danger: true,
    run: async () => {
      await each(runs, (run) => api("scheduler", "cancel", { run: run.run, reason: "cancelled from the dashboard" }));
      done();
    },
  });
}

function rerunRuns(runs: RunState[], done: () => void): void {
  confirm({
    title: `Rerun ${count(runs.length)} ${runs.length === 1 ? "run" : "runs"}?`,
    text: "Each is submitted again as a new run with the same configuration.",
    command: runs.slice(0, MOST_NAMED).map((run) => `mosaic rerun ${run.run}`).join(" && ") + others(runs),
    action: "Rerun",
    run: async () => {
      await each(runs, (run) => api("scheduler", "rerun", { run: run.run }));
      done();
    },
  });
}

function deleteRuns(runs: RunState[], done: () => void, command = `mosaic delete ${words(runs)}`): void {
  const known = runs.reduce((sum, run) => sum + (diskUse.value.get(run.run) ?? 0), 0);
  confirm({
    title: `Delete ${count(runs.length)} ${runs.length === 1 ? "run" : "runs"}?`,
    text: `Their events, files, logs and frames go too${known ? ` (at least ${bytes(known)})` : ""}. This cannot be undone.`,
    command,
    action: "Delete for ever",
    danger: true,
    run: async () => {
      const kept: string[] = [];
      for (let first = 0; first < runs.length; first += DELETE_BATCH) {
        const batch = runs.slice(first, first + DELETE_BATCH).map((run) => run.run);
        const result = await api<{ kept: { name: string; reason: string }[] }>("scheduler", "delete", { runs: batch });
        kept.push(...result.kept.map((one) => `${one.name}: ${one.reason}`));
      }
      reloadRuns();
      done();
      if (kept.length) throw new Error(`Kept: ${kept.join("; ")}`);
    },
  });
}

const UNIT_S: Record<string, number> = { s: 1, m: 60, h: 3600, d: 86_400, w: 7 * 86_400 };

/** Delete all runs that ended long ago. */
function Prune() {
  const age = useSignal("30d");
  const given = /^(\d{1,9})([smhdw])$/.exec(age.value.trim());
  const before = given ? now.value - Number(given[1]) * (UNIT_S[given[2] as string] as number) : null;
  const old = before === null ? [] : allRuns.value.filter((run) => run.ended_at !== null && run.ended_at < before);
  return (
    <span class="row">
      <label class="row">
        <span class="muted">or all older than</span>
        <input
          class="age"
          value={age.value}
          aria-invalid={given ? undefined : true}
          title="An age, such as 12h, 30d or 8w"
          onInput={(event) => (age.value = event.currentTarget.value)}
        />
      </label>
      <button type="button" class="danger" disabled={!old.length} onClick={() => deleteRuns(old, () => {}, `mosaic prune --older-than ${age.value.trim()}`)}>
        {given ? `Delete all ${count(old.length)}` : "Enter an age, such as 30d"}
      </button>
    </span>
  );
}

export function BulkBar({ picked, clear }: { picked: ReadonlySignal<RunState[]>; clear: () => void }) {
  const active = picked.value.filter((run) => !isFinal(run));
  const ended = picked.value.filter(isFinal);
  return (
    <div class="row" role="group" aria-label="Actions on chosen runs">
      <span class="muted number">{picked.value.length ? `${count(picked.value.length)} chosen` : "Choose runs to act on them"}</span>
      <button type="button" disabled={!active.length} onClick={() => cancelRuns(active, clear)}>
        Cancel{active.length ? ` ${active.length}` : ""}
      </button>
      <button type="button" disabled={!ended.length} onClick={() => rerunRuns(ended, clear)}>
        Rerun{ended.length ? ` ${ended.length}` : ""}
      </button>
      <button type="button" disabled={!ended.length} class="danger" onClick={() => deleteRuns(ended, clear)}>
        Delete{ended.length ? ` ${ended.length}` : ""}
      </button>
      <Prune />
      {picked.value.length > 1 && (
        <a class="button" href={`/compare?runs=${picked.value.map((run) => run.run).join(",")}`}>
          Compare {picked.value.length}
        </a>
      )}
    </div>
  );
}
