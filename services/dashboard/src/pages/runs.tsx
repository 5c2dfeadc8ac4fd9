/** Runs: all of them in one table. Filter, sort and baseline are in the address, so that a view can be sent. */

import { computed, useComputed, useSignal, useSignalEffect, type Signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { allRuns, summaryOf, wantAllRuns } from "../bus/all_runs";
import { role } from "../bus/connection";
import { diskUse, loadDiskUse, wantDiskUse } from "../bus/disk";
import { counts, known, totalRuns } from "../bus/states";
import { isFinal, type RunState } from "../bus/types";
import { Ago, StateBadge } from "../parts/badges";
import { Empty } from "../parts/empty";
import { bytes, count, figure, shortId, span } from "../parts/format";
import { partDone, took } from "../parts/progress";
import { Table, type Column } from "../parts/table";
import { query, setQuery } from "../router";
import { BulkBar } from "./runs_bulk";

const STATES = ["active", "queued", "running", "succeeded", "failed", "cancelled", "lost"];

type SortKey = (run: RunState) => number | string;
const SORTS: Record<string, SortKey> = {
  name: (run) => run.name,
  state: (run) => run.state,
  worker: (run) => run.worker,
  group: (run) => run.group,
  progress: (run) => partDone(run, summaryOf(run.run)) ?? -1,
  step: (run) => summaryOf(run.run)?.step ?? -1,
  speed: (run) => (run.state === "running" ? (summaryOf(run.run)?.steps_per_s ?? -1) : -1),
  return: (run) => summaryOf(run.run)?.return_mean ?? Number.NEGATIVE_INFINITY,
  submitted: (run) => run.submitted_at,
  took: (run) => took(run) ?? -1,
  disk: (run) => diskUse.value.get(run.run) ?? -1,
};

const sort = computed(() => {
  const given = query.value.get("sort") ?? "";
  return { key: given in SORTS ? given : "submitted", down: query.value.get("up") === null };
});

function fits(run: RunState, text: string, state: string): boolean {
  if (state === "active" ? isFinal(run) : state && run.state !== state) return false;
  if (!text) return true;
  const about = [run.name, run.run, run.worker, run.state, run.group, run.host, run.reason, summaryOf(run.run)?.task];
  const joined = about.join(" ").toLowerCase();
  return text.toLowerCase().split(/\s+/).every((word) => joined.includes(word));
}

const shown = computed(() => {
  const text = query.value.get("q") ?? "";
  const state = query.value.get("state") ?? "";
  const pinned = query.value.get("pin");
  const { key, down } = sort.value;
  const value = SORTS[key] as SortKey;
  const rows = allRuns.value.filter((run) => run.run !== pinned && fits(run, text, state));
  const keyed = rows.map((run) => ({ run, value: value(run) }));
  keyed.sort((a, b) => (a.value < b.value ? -1 : a.value > b.value ? 1 : 0) * (down ? -1 : 1));
  const baseline = pinned ? allRuns.value.find((run) => run.run === pinned) : undefined;
  return [...(baseline ? [baseline] : []), ...keyed.map((each) => each.run)];
});

/** Whether any run belongs to a sweep; most people have none, and the column would be empty. */
const grouped = computed(() => allRuns.value.some((run) => run.group));

export function Runs() {
  const chosen = useSignal<ReadonlySet<string>>(new Set());
  useEffect(() => wantAllRuns(), []);
  useSignalEffect(() => {
    if (sort.value.key === "disk") void loadDiskUse(shown.value);
  });
  const picked = useComputed(() => allRuns.value.filter((run) => chosen.value.has(run.run)));
  return (
    <div class="stack">
      <div class="page-head">
        <h1>Runs</h1>
        <span class="muted" id="shown">
          {count(shown.value.length)} of {count(Math.max(totalRuns.value, allRuns.value.length))}
        </span>
      </div>
      <Filters />
      {role.value === "owner" && <BulkBar picked={picked} clear={() => (chosen.value = new Set())} />}
      <RunTable chosen={chosen} />
    </div>
  );
}

function Filters() {
  const state = query.value.get("state") ?? "";
  return (
    <div class="row">
      <label class="row">
        Filter
        <input
          type="search"
          value={query.value.get("q") ?? ""}
          placeholder="name, id, worker, task, reason"
          onInput={(event) => setQuery({ q: event.currentTarget.value })}
        />
      </label>
      <label class="row">
        State
        <select value={state} onChange={(event) => setQuery({ state: event.currentTarget.value })}>
          <option value="">all</option>
          {STATES.map((each) => (
            <option key={each} value={each}>
              {each}
              {counts.value[each] ? ` (${counts.value[each]})` : ""}
            </option>
          ))}
        </select>
      </label>
    </div>
  );
}

function RunTable({ chosen }: { chosen: Signal<ReadonlySet<string>> }) {
  const pinned = query.value.get("pin");
  const columns = columnsOf(chosen, pinned);
  const onSort = (key: string) => {
    const same = sort.value.key === key;
    setQuery({ sort: key, up: same && sort.value.down ? "1" : null });
  };
  return (
    <Table
      label="Runs"
      rows={shown.value}
      columns={columns}
      keyOf={(run) => run.run}
      height="calc(100vh - 230px)"
      sort={sort.value}
      onSort={onSort}
      rowClass={(run) => (run.run === pinned ? "pinned" : "")}
      onView={wantDiskUse}
      empty={
        known.value &&
        (totalRuns.value ? (
          <Empty>
            No run fits the filter. <a href="/runs">Show all</a>
          </Empty>
        ) : (
          <Empty command="mosaic submit configs/runs/random-cartpole.yaml">
            No runs yet. <a href="/start">Start one with a form</a>, or:
          </Empty>
        ))
      }
    />
  );
}

function columnsOf(chosen: Signal<ReadonlySet<string>>, pinned: string | null): Column<RunState>[] {
  const baseline = pinned ? summaryOf(pinned)?.return_mean : null;
  const toggle = (run: RunState, on: boolean) => {
    const next = new Set(chosen.value);
    if (on) next.add(run.run);
    else next.delete(run.run);
    chosen.value = next;
  };
  const pick: Column<RunState> = {
    key: "pick",
    title: "Choose",
    width: 34,
    head: <ChooseAll chosen={chosen} />,
    cell: (run) => (
      <input
        type="checkbox"
        aria-label={`choose ${run.name} ${shortId(run.run)}`}
        checked={chosen.value.has(run.run)}
        onChange={(event) => toggle(run, event.currentTarget.checked)}
      />
    ),
  };
  const group: Column<RunState> = { key: "group", title: "Group", sorts: true, width: 110, cell: (run) => run.group };
  return [
    ...(role.value === "owner" ? [pick] : []),
    { key: "pin", title: "Base", width: 62, cell: (run) => <Pin run={run} on={run.run === pinned} /> },
    { key: "name", title: "Run", sorts: true, width: 180, cell: nameCell, hover: (run) => `${run.name} ${run.run}` },
    { key: "state", title: "State", sorts: true, width: 110, cell: (run) => <StateBadge state={run.state} />, hover: (run) => run.reason },
    { key: "worker", title: "Worker", sorts: true, width: 74, cell: (run) => run.worker },
    ...(grouped.value ? [group] : []),
    { key: "progress", title: "Progress", sorts: true, right: true, width: 92, cell: progressCell },
    { key: "step", title: "Steps", sorts: true, right: true, width: 88, cell: (run) => stepCell(run) },
    { key: "speed", title: "Steps/s", sorts: true, right: true, width: 80, cell: speedCell },
    {
      key: "return",
      title: "Return",
      sorts: true,
      right: true,
      width: pinned ? 146 : 78,
      cell: (run) => returnCell(run, run.run === pinned ? null : (baseline ?? null)),
      hover: () => "mean return of the last 100 episodes, and the difference to the baseline",
    },
    { key: "submitted", title: "Submitted", sorts: true, right: true, width: 110, cell: (run) => <Ago at={run.submitted_at} /> },
    { key: "took", title: "Took", sorts: true, right: true, width: 96, cell: tookCell },
    { key: "disk", title: "Disk", sorts: true, right: true, width: 66, cell: (run) => bytes(diskUse.value.get(run.run)) },
  ];
}

function ChooseAll({ chosen }: { chosen: Signal<ReadonlySet<string>> }) {
  const all = shown.value.length > 0 && shown.value.every((run) => chosen.value.has(run.run));
  return (
    <input
      type="checkbox"
      aria-label="choose all that are shown"
      checked={all}
      onChange={(event) => {
        chosen.value = event.currentTarget.checked ? new Set(shown.value.map((run) => run.run)) : new Set();
      }}
    />
  );
}

function nameCell(run: RunState) {
  return (
    <a href={`/run/${run.run}`}>
      {run.name} <span class="muted">{shortId(run.run)}</span>
    </a>
  );
}

function progressCell(run: RunState) {
  const part = partDone(run, summaryOf(run.run));
  return part === null ? "–" : `${Math.floor(part * 100)} %`;
}

function stepCell(run: RunState) {
  const summary = summaryOf(run.run);
  return summary ? count(summary.step) : "–";
}

function speedCell(run: RunState) {
  const summary = summaryOf(run.run);
  return run.state === "running" && summary ? count(Math.round(summary.steps_per_s)) : "–";
}

function tookCell(run: RunState) {
  const seconds = took(run);
  return seconds === null ? "–" : span(seconds);
}

function returnCell(run: RunState, baseline: number | null) {
  const mean = summaryOf(run.run)?.return_mean;
  const difference = baseline === null || mean === null || mean === undefined ? null : mean - baseline;
  return (
    <>
      {figure(mean)}
      {difference !== null && (
        <span class="muted"> ({`${difference < 0 ? "−" : "+"}${figure(Math.abs(difference))}`})</span>
      )}
    </>
  );
}

function Pin({ run, on }: { run: RunState; on: boolean }) {
  return (
    <button
      type="button"
      class="small"
      aria-pressed={on}
      aria-label={`${on ? "unpin" : "pin"} ${run.name} ${shortId(run.run)} as baseline`}
      onClick={() => setQuery({ pin: on ? null : run.run })}
    >
      {on ? "Unpin" : "Pin"}
    </button>
  );
}
