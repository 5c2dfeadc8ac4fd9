/** The state of a run, and times: relative, with the exact one on hover. */

import { now } from "../bus/states";
import { ago } from "./format";

export function StateBadge({ state, title }: { state: string; title?: string }) {
  return (
    <span class={`badge state-${state}`} title={title} data-state={state}>
      {state}
    </span>
  );
}

export function Ago({ at }: { at: number | null | undefined }) {
  if (at === null || at === undefined) return <span class="muted">–</span>;
  const exact = new Date(at * 1000);
  return (
    <time class="number" dateTime={exact.toISOString()} title={exact.toLocaleString()}>
      {ago(now.value - at)}
    </time>
  );
}
