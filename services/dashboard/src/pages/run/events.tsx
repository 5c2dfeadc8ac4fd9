/** The raw events of an attempt, as the worker wrote them, page by page. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { api, explain } from "../../bus/api";
import type { Rows, RunState } from "../../bus/types";
import { CommandLine } from "../../parts/command";
import { count } from "../../parts/format";
import { query, setQuery } from "../../router";
import { AttemptChoice, attemptOf } from "./attempt_choice";

interface Event {
  number: number;
  event: string;
  line: string;
}

const PAGE = 200;
const KINDS = [
  "",
  "run_started",
  "step",
  "episode",
  "scalars",
  "checkpoint_saved",
  "artifact",
  "log",
  "heartbeat",
  "run_completed",
  "run_failed",
  "run_cancelled",
];

export function Events({ run }: { run: RunState }) {
  const attempt = attemptOf(run);
  const kind = query.value.get("kind") ?? "";
  const start = Math.max(0, Number(query.value.get("start")) || 0);
  const found = useSignal<Rows<Event> | null>(null);
  const problem = useSignal("");
  useEffect(() => {
    const args = { run: run.run, attempt, kinds: kind ? [kind] : [], start, limit: PAGE };
    api<Rows<Event>>("telemetry", "events", args).then(
      (rows) => (found.value = rows),
      (error) => (problem.value = explain(error)),
    );
  }, [run.run, attempt, kind, start]);
  const rows = found.value?.rows ?? [];
  const next = found.value?.next ?? null;
  return (
    <div class="stack">
      <div class="row">
        <AttemptChoice run={run} />
        <label class="row">
          Kind
          <select value={kind} onChange={(event) => setQuery({ kind: event.currentTarget.value, start: null })}>
            {KINDS.map((each) => (
              <option key={each} value={each}>
                {each || "all"}
              </option>
            ))}
          </select>
        </label>
        <button type="button" disabled={!start} onClick={() => setQuery({ start: String(Math.max(0, start - PAGE)) })}>
          Earlier
        </button>
        <button type="button" disabled={next === null} onClick={() => setQuery({ start: String(next) })}>
          Later
        </button>
        <span class="muted number">
          {rows.length ? `lines ${count(rows[0]?.number ?? 0)} to ${count(rows.at(-1)?.number ?? 0)}` : "no events"}
        </span>
        <CommandLine command={`mosaic logs ${run.run} --events`} />
      </div>
      {problem.value && <p class="error">{problem.value}</p>}
      <pre class="lines" tabIndex={0} role="region" aria-label="raw events">
        {rows.map((row) => row.line).join("\n")}
      </pre>
    </div>
  );
}
