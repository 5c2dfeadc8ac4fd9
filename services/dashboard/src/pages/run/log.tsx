/** The log of a run: what it printed, live. */

import { useSignal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { MOST_LINES, watchLog } from "../../bus/log";
import type { RunState, RunStateName } from "../../bus/types";
import { CommandLine } from "../../parts/command";
import { count } from "../../parts/format";
import { AttemptChoice, attemptOf } from "./attempt_choice";

const NOT_BEGUN = new Set<RunStateName>(["queued", "preparing", "starting"]);

export function Log({ run }: { run: RunState }) {
  const attempt = attemptOf(run);
  const watch = useMemo(() => watchLog(run.run, attempt, !NOT_BEGUN.has(run.state)), [run.run, attempt]);
  useEffect(() => () => watch.end(), [watch]);
  const box = useRef<HTMLPreElement>(null);
  const follow = useSignal(true);
  const rows = watch.rows.value;
  useEffect(() => {
    if (follow.value && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [rows, follow.value]);
  return (
    <div class="stack">
      <div class="row">
        <AttemptChoice run={run} />
        {(rows[0]?.number ?? 0) > 0 && (
          <>
            <button type="button" onClick={() => void watch.earlier()}>
              Earlier lines
            </button>
            <span class="muted" title={`The page keeps ${count(MOST_LINES)} of a log that grows`}>the last {count(rows.length)} lines</span>
          </>
        )}
        <label class="row">
          <input type="checkbox" checked={follow.value} onChange={(event) => (follow.value = event.currentTarget.checked)} />
          follow
        </label>
        <CommandLine command={`mosaic logs ${run.run} --follow`} />
      </div>
      <pre class="lines" ref={box} tabIndex={0} role="log" aria-label={`log of attempt ${attempt}`} id="log">
        {rows.length ? rows.map((row) => row.line).join("\n") : "Nothing was printed yet."}
      </pre>
    </div>
  );
}
