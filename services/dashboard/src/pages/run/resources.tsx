/** What a run asked for, what it uses now, and where its time went. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { hosts, now } from "../../bus/states";
import { FINAL_STATES, isFinal, type Decision, type RunDetail, type RunState, type Usage } from "../../bus/types";
import { span } from "../../parts/format";
import { Sparkline } from "../../parts/meter";

/** Readings that are kept while the page is open. */
const KEPT = 240;

export function ResourcesTab({ run, detail }: { run: RunState; detail: RunDetail | null }) {
  const report = run.host ? hosts.value.get(run.host)?.attempts.find((each) => each.run === run.run) : undefined;
  const past = useSignal<Usage[]>([]);
  useEffect(() => {
    if (report) past.value = [...past.value, report.usage].slice(-KEPT);
  }, [report]);
  return (
    <div class="grid">
      <div>
        <h3>Uses now</h3>
        {report && !isFinal(run) ? (
          <dl class="facts">
            <dt>CPU</dt>
            <dd class="number">{Math.round(report.usage.cpu_percent)} % of one core</dd>
            <dt>Memory</dt>
            <dd class="number">{Math.round(report.usage.rss_mb)} MB</dd>
            <dt>Processes</dt>
            <dd class="number">{report.usage.processes}</dd>
            <dt>GPUs</dt>
            <dd>{Object.entries(report.gpus).map(([id, share]) => `${id}: ${share}`).join(", ") || "none"}</dd>
          </dl>
        ) : (
          <p class="muted">Nothing: it does not run.</p>
        )}
        {report?.warnings.map((warning) => (
          <p key={warning} class="error">
            {warning}
          </p>
        ))}
        {past.value.length > 1 && (
          <>
            <p class="muted">CPU and memory since this page is open</p>
            <Sparkline values={past.value.map((usage) => usage.cpu_percent)} label="CPU over time" />
            <Sparkline values={past.value.map((usage) => usage.rss_mb)} label="memory over time" />
          </>
        )}
      </div>
      {detail && <Asked detail={detail} />}
      {detail && <TimeSpent run={run} detail={detail} />}
    </div>
  );
}

function Asked({ detail }: { detail: RunDetail }) {
  const { resources, limits, retries, grace_s } = detail.spec;
  return (
    <div>
      <h3>Asked for</h3>
      <dl class="facts">
        <dt>CPUs</dt>
        <dd>{resources.cpus}</dd>
        <dt>Memory</dt>
        <dd>{resources.memory_mb} MB</dd>
        <dt>GPUs</dt>
        <dd>{resources.gpus}</dd>
        <dt>Memory limit</dt>
        <dd>{limits.memory_mb === null ? "none" : `${limits.memory_mb} MB`}</dd>
        <dt>Time limit</dt>
        <dd>{limits.wall_s === null ? "none" : span(limits.wall_s)}</dd>
        <dt>Retries</dt>
        <dd>{retries.max ? `${retries.max}, on ${retries.on.join(", ")}` : "none"}</dd>
        <dt>Grace period</dt>
        <dd>{span(grace_s)}</dd>
      </dl>
    </div>
  );
}

/** The phase that begins with a decision. Others, such as a warning, begin none. */
const PHASES: Record<string, string> = {
  submitted: "queued",
  queued: "queued",
  retry: "queued",
  refused: "queued",
  placed: "starting",
  preparing: "preparing",
  starting: "starting",
  running: "running",
  stopping: "stopping",
  ...Object.fromEntries(FINAL_STATES.map((state) => [state, "ended"])),
};

/** Seconds in each phase, from the scheduler's decisions: a phase lasts until the next one. */
function timeSpent(decisions: Decision[], until: number): Map<string, number> {
  const spent = new Map<string, number>();
  const begun = decisions.flatMap(({ event, at }) => (PHASES[event] ? [{ phase: PHASES[event], at }] : []));
  begun.forEach(({ phase, at }, i) => {
    if (phase === "ended") return;
    const end = begun[i + 1]?.at ?? until;
    spent.set(phase, (spent.get(phase) ?? 0) + Math.max(0, end - at));
  });
  return spent;
}

function TimeSpent({ run, detail }: { run: RunState; detail: RunDetail }) {
  const spent = timeSpent(detail.decisions, isFinal(run) ? (run.ended_at ?? run.changed_at) : now.value);
  const total = [...spent.values()].reduce((sum, each) => sum + each, 0) || 1;
  return (
    <div>
      <h3>Where time goes</h3>
      <div class="time-bar" role="img" aria-label={[...spent].map(([phase, s]) => `${phase} ${span(s)}`).join(", ")}>
        {[...spent].map(([phase, seconds]) => (
          <span key={phase} class={`state-${phase}`} style={{ flexGrow: seconds / total }} />
        ))}
      </div>
      <ul class="plain-list time-list">
        {[...spent].map(([phase, seconds]) => (
          <li key={phase}>
            <span class={`badge state-${phase}`}>{phase}</span>{" "}
            <span class="number muted">
              {span(seconds)} ({Math.round((100 * seconds) / total)} %)
            </span>
          </li>
        ))}
      </ul>
    </div>
  );
}
