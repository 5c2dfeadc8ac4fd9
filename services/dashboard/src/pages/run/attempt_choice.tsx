/** Which attempt of a run a tab shows: the newest, unless the address says another. */

import type { RunState } from "../../bus/types";
import { query, setQuery } from "../../router";

export function attemptOf(run: RunState): number {
  const given = Number(query.value.get("attempt"));
  return Number.isInteger(given) && given >= 1 && given <= run.attempt ? given : Math.max(1, run.attempt);
}

export function AttemptChoice({ run }: { run: RunState }) {
  if (run.attempt < 2) return null;
  const all = Array.from({ length: run.attempt }, (_, i) => i + 1);
  return (
    <label class="row">
      Attempt
      <select value={attemptOf(run)} onChange={(event) => setQuery({ attempt: event.currentTarget.value })}>
        {all.map((number) => (
          <option key={number} value={number}>
            {number}
          </option>
        ))}
      </select>
    </label>
  );
}
