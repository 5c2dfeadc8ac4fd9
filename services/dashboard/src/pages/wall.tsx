/** Wall: the live frames of all running runs. A stream that has died says when. */

import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { framesHost } from "../bus/frames";
import { known, runs, summaries } from "../bus/states";
import { isFinal, type RunState } from "../bus/types";
import { Ago, StateBadge } from "../parts/badges";
import { Empty } from "../parts/empty";
import { figure } from "../parts/format";
import { Frame } from "../parts/frame";
import { query, setQuery } from "../router";

/** Frames at a time; a page has 128 watches, and a browser decodes only so many. */
const MOST = 48;
/** Runs that were on the wall while it was open: when one ends, its last picture stays. */
const seen = signal<ReadonlySet<string>>(new Set());

export function Wall() {
  const size = query.value.get("size") === "large" ? 640 : 320;
  const all = [...runs.value.values()];
  const live = all.filter((run) => run.state === "running" || run.state === "stopping");
  const ids = live.map((run) => run.run).join();
  useEffect(() => {
    seen.value = new Set([...seen.value, ...live.map((run) => run.run)]);
  }, [ids]);
  useEffect(() => () => void (seen.value = new Set()), []);
  const onWall = all.filter((run) => seen.value.has(run.run) || live.includes(run));
  onWall.sort((a, b) => Number(isFinal(a)) - Number(isFinal(b)) || b.submitted_at - a.submitted_at);
  return (
    <div class="stack">
      <div class="page-head">
        <h1>Wall</h1>
        <span class="muted">{live.length} running</span>
        <span class="spread" />
        <button type="button" aria-pressed={size === 640} onClick={() => setQuery({ size: size === 640 ? null : "large" })}>
          Large
        </button>
      </div>
      {known.value && !onWall.length && (
        <Empty command="mosaic submit configs/runs/watched-cartpole.yaml">Nothing runs now. This run has frames:</Empty>
      )}
      <div class={`grid wall ${size === 640 ? "large" : ""}`}>
        {onWall.slice(0, MOST).map((run) => (
          <Tile key={run.run} run={run} size={size} />
        ))}
      </div>
      {onWall.length > MOST && <p class="muted">{onWall.length - MOST} more runs are not shown.</p>}
    </div>
  );
}

function Tile({ run, size }: { run: RunState; size: 320 | 640 }) {
  const summary = summaries.value.get(run.run);
  return (
    <figure class="card tile" data-run={run.run}>
      <Frame run={run.run} host={framesHost(run)} live={!isFinal(run)} maxDim={size} nothing={isFinal(run) ? "This run had no frames" : "No frame yet"} />
      <figcaption class="row">
        <a class="ellipsis" href={`/run/${run.run}`}>
          {run.name}
        </a>
        {isFinal(run) ? (
          <span>
            <StateBadge state={run.state} title={run.reason} /> <Ago at={run.ended_at} />
          </span>
        ) : (
          <span class="number muted">return {figure(summary?.return_mean)}</span>
        )}
      </figcaption>
    </figure>
  );
}
