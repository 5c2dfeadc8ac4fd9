/** The checkpoints that a run has saved. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { api } from "../../bus/api";
import { isFinal, type RunState } from "../../bus/types";
import { Ago } from "../../parts/badges";
import { CommandLine } from "../../parts/command";
import { count, figure } from "../../parts/format";
import { Table, type Column } from "../../parts/table";
import { fileAddress } from "./files";

interface Checkpoint {
  attempt: number;
  host: string;
  path: string;
  step: number | null;
  ts: number | null;
  best: boolean;
  score: number | null;
}

export function Checkpoints({ run, version }: { run: RunState; version: string }) {
  const found = useSignal<Checkpoint[] | null>(null);
  useEffect(() => {
    if (!version) {
      found.value = []; // the store may not know the run yet, and would refuse
      return;
    }
    api<{ checkpoints: Checkpoint[] }>("telemetry", "checkpoints", { run: run.run }).then(
      (answer) => (found.value = answer.checkpoints.reverse()),
      () => (found.value = found.value ?? []),
    );
  }, [run.run, run.state, version]);
  if (!found.value) return <p class="muted">Asking the store …</p>;
  if (!found.value.length) return <p class="muted">This run has saved no checkpoint{isFinal(run) ? "" : " yet"}.</p>;
  const columns: Column<Checkpoint>[] = [
    { key: "step", title: "Step", right: true, width: 110, cell: (row) => (row.step === null ? "–" : count(row.step)) },
    { key: "score", title: "Score", right: true, width: 100, cell: (row) => figure(row.score) },
    { key: "best", title: "Best", width: 70, cell: (row) => (row.best ? "best" : "") },
    { key: "saved", title: "Saved", width: 110, cell: (row) => <Ago at={row.ts} /> },
    { key: "attempt", title: "Attempt", right: true, width: 80, cell: (row) => row.attempt },
    {
      key: "path",
      title: "File",
      width: 300,
      cell: (row) => (row.path.startsWith("/") ? row.path : <a href={fileAddress(run.run, `${row.attempt}/${row.path}`)} download>{row.path}</a>),
      hover: (row) => `${row.path} on ${row.host}`,
    },
  ];
  return (
    <div class="stack">
      {isFinal(run) && <CommandLine command={`mosaic resume ${run.run}`} label="the command that trains on from the last checkpoint" />}
      <Table label="Checkpoints" rows={found.value} columns={columns} keyOf={(row) => `${row.attempt}/${row.path}/${row.ts}`} height="420px" />
    </div>
  );
}
