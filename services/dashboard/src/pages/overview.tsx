/** Overview: hosts, live runs, the queue with its reasons, the last failures with their cause. */

import { framesHost } from "../bus/frames";
import { counts, hosts, known, runs, summaries, totalRuns } from "../bus/states";
import { isFinal, type RunState } from "../bus/types";
import { Ago, StateBadge } from "../parts/badges";
import { Empty } from "../parts/empty";
import { count, figure, shortId, span } from "../parts/format";
import { Frame } from "../parts/frame";
import { HostCard } from "../parts/host";
import { Progress, Sparkline } from "../parts/meter";
import { partDone, secondsLeft } from "../parts/progress";

/** Live runs with a picture; the wall shows more. */
const MOST_PICTURES = 8;
const MOST_LIVE = 24;
const MOST_FAILURES = 6;
const MOST_QUEUED = 8;

export function Overview() {
  if (!known.value) return <p class="muted">Waiting for the first news …</p>;
  const all = [...runs.value.values()];
  const live = all.filter((run) => !isFinal(run) && run.state !== "queued");
  live.sort((a, b) => (b.started_at ?? b.submitted_at) - (a.started_at ?? a.submitted_at));
  const queued = all.filter((run) => run.state === "queued");
  queued.sort((a, b) => b.priority - a.priority || a.submitted_at - b.submitted_at);
  const failed = all.filter((run) => run.state === "failed" || run.state === "lost");
  failed.sort((a, b) => (b.ended_at ?? 0) - (a.ended_at ?? 0));
  return (
    <div class="stack">
      <div class="page-head">
        <h1>Overview</h1>
        <Counts />
      </div>
      <Hosts />
      <Live live={live} />
      <div class="grid overview-below">
        <Queue queued={queued} />
        <Failures failed={failed} />
      </div>
    </div>
  );
}

function Counts() {
  const words = ["running", "queued", "succeeded", "failed", "lost", "cancelled"].filter((state) => counts.value[state]);
  return (
    <div class="row">
      {words.map((state) => (
        <a key={state} href={`/runs?state=${state}`} class={`badge state-${state}`}>
          {count(counts.value[state] ?? 0)} {state}
        </a>
      ))}
    </div>
  );
}

function Hosts() {
  const all = [...hosts.value.values()].sort((a, b) => a.host.localeCompare(b.host));
  if (!all.length) {
    return <Empty command="mosaic up">No host has reported, so no run can start. Start a stack:</Empty>;
  }
  return (
    <section class="grid" aria-label="Hosts">
      {all.map((host) => (
        <HostCard key={host.host} host={host} />
      ))}
    </section>
  );
}

function Live({ live }: { live: RunState[] }) {
  if (!live.length) {
    return (
      <section class="card" aria-label="Live runs">
        <h2>Live runs</h2>
        <Empty command="mosaic submit configs/runs/watched-cartpole.yaml">
          {totalRuns.value ? "Nothing runs now." : "No runs yet."} <a href="/start">Start one with a form</a>, or:
        </Empty>
      </section>
    );
  }
  return (
    <section aria-label="Live runs" class="stack">
      <h2>Live runs</h2>
      <div class="grid">
        {live.slice(0, MOST_LIVE).map((run, i) => (
          <LiveRun key={run.run} run={run} picture={i < MOST_PICTURES} />
        ))}
      </div>
      {live.length > MOST_LIVE && <a href="/runs?state=active">All {live.length} live runs</a>}
    </section>
  );
}

function LiveRun({ run, picture }: { run: RunState; picture: boolean }) {
  const summary = summaries.value.get(run.run);
  const left = secondsLeft(run, summary);
  return (
    <article class="card live-run" data-run={run.run}>
      <div class="row">
        <h3 class="ellipsis">
          <a href={`/run/${run.run}`}>{run.name}</a>
        </h3>
        <StateBadge state={run.state} title={run.reason} />
      </div>
      <p class="ellipsis muted" title={summary?.task}>
        {summary?.task || run.worker} · {run.host ?? "no host"}
      </p>
      {run.state === "running" ? (
        <>
          <div class="live-run-middle">
            {picture && <Frame run={run.run} host={framesHost(run)} live maxDim={160} pauseMs={1000} nothing="no frame yet" />}
            <Sparkline values={summary?.returns ?? []} label={`episode returns of ${run.name}`} />
          </div>
          <p class="row number">
            <span title="mean return of the last 100 episodes">return {figure(summary?.return_mean)}</span>
            <span class="muted">{count(Math.round(summary?.steps_per_s ?? 0))} steps/s</span>
            {left !== null && <span class="muted">{span(left)} left</span>}
          </p>
          <Progress part={partDone(run, summary)} label={`progress of ${run.name}`} />
        </>
      ) : (
        <p>{run.detail || run.reason}</p>
      )}
    </article>
  );
}

function Queue({ queued }: { queued: RunState[] }) {
  return (
    <section class="card" aria-label="Queue">
      <div class="head">
        <h2>Queue</h2>
        <span class="muted">{queued.length ? `${count(queued.length)} queued` : ""}</span>
      </div>
      {!queued.length && <p class="muted">The queue is empty.</p>}
      <ul class="plain-list">
        {queued.slice(0, MOST_QUEUED).map((run) => (
          <li key={run.run}>
            <a href={`/run/${run.run}?tab=why`}>{run.name}</a> <span class="muted">{shortId(run.run)}</span>
            <div>{run.reason}</div>
          </li>
        ))}
      </ul>
      {queued.length > MOST_QUEUED && <a href="/runs?state=queued">All queued runs</a>}
    </section>
  );
}

function Failures({ failed }: { failed: RunState[] }) {
  return (
    <section class="card" aria-label="Last failures">
      <div class="head">
        <h2>Last failures</h2>
      </div>
      {!failed.length && <p class="muted">Nothing has failed.</p>}
      <ul class="plain-list">
        {failed.slice(0, MOST_FAILURES).map((run) => (
          <li key={run.run}>
            <span class={`badge state-${run.state}`}>
              <a href={`/run/${run.run}?tab=why`}>{run.name}</a>
            </span>{" "}
            <span class="muted">
              <Ago at={run.ended_at} />
            </span>
            <div class="ellipsis" title={run.reason}>
              {run.category ? `${run.category}: ` : ""}
              {run.reason}
            </div>
          </li>
        ))}
      </ul>
      {failed.length > MOST_FAILURES && <a href="/runs?state=failed">All failures</a>}
    </section>
  );
}
