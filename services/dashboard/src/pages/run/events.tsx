/** The raw events of an attempt, as the worker wrote them: page by page, the last page live. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { follow } from "../../bus/connection";
import type { RunState } from "../../bus/types";
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
  "checkpoint_loaded",
  "artifact",
  "log",
  "reply",
  "heartbeat",
  "run_completed",
  "run_failed",
  "run_cancelled",
];

export function Events({ run }: { run: RunState }) {
  const attempt = attemptOf(run);
  const kind = query.value.get("kind") ?? "";
  const start = Math.max(0, Number(query.value.get("start")) || 0);
  const rows = useSignal<Event[]>([]);
  /** Where the next page begins; null while this one is not full. */
  const next = useSignal<number | null>(null);
  /** Beginnings of the pages before this one: of events of one kind nobody knows them without having been there. */
  const before = useSignal<number[]>([]);
  useEffect(() => {
    rows.value = [];
    next.value = null;
    let at = start;
    const watch = follow({
      ask: () => ({ type: "watch_events", run: run.run, attempt, kinds: kind ? [kind] : [], start: at }),
      take: (message: { start: number; rows: Event[]; next: number }) => {
        if (message.start !== at || next.value !== null) return; // of the connection before, or the page is full
        at = message.next;
        const all = [...rows.value, ...message.rows];
        rows.value = all.slice(0, PAGE);
        if (all.length < PAGE) return;
        next.value = all[PAGE]?.number ?? at;
        watch.end();
      },
    });
    return () => watch.end();
  }, [run.run, attempt, kind, start]);
  const later = () => {
    before.value = [...before.value, start];
    setQuery({ start: String(next.value) });
  };
  const earlier = () => {
    const found = before.value.at(-1) ?? (kind ? 0 : Math.max(0, start - PAGE));
    before.value = before.value.slice(0, -1);
    setQuery({ start: found ? String(found) : null });
  };
  const choose = (chosen: string) => {
    before.value = [];
    setQuery({ kind: chosen, start: null });
  };
  return (
    <div class="stack">
      <div class="row">
        <AttemptChoice run={run} />
        <label class="row">
          Kind
          <select value={kind} onChange={(event) => choose(event.currentTarget.value)}>
            {KINDS.map((each) => (
              <option key={each} value={each}>
                {each || "all"}
              </option>
            ))}
          </select>
        </label>
        <button type="button" disabled={!start} onClick={earlier}>
          Earlier
        </button>
        <button type="button" disabled={next.value === null} onClick={later}>
          Later
        </button>
        <span class="muted number">
          {rows.value.length ? `lines ${count(rows.value[0]?.number ?? 0)} to ${count(rows.value.at(-1)?.number ?? 0)}` : "no events"}
        </span>
        <CommandLine command={`mosaic logs ${run.run} --events`} />
      </div>
      <pre class="lines" tabIndex={0} role="region" aria-label="raw events">
        {rows.value.map((row) => row.line).join("\n")}
      </pre>
    </div>
  );
}
