/** The head of a run: what it is, how far it is, and what can be done with it. */

import { role } from "../../bus/connection";
import { isFinal, type RunState, type RunSummary } from "../../bus/types";
import { Ago, StateBadge } from "../../parts/badges";
import { count, figure, shortId, span } from "../../parts/format";
import { Progress } from "../../parts/meter";
import { partDone, secondsLeft, took } from "../../parts/progress";
import { PAGES } from "../index";
import { cancelRuns } from "../runs_bulk";

interface HeadProps {
  run: RunState;
  summary: RunSummary | undefined;
}

export function RunHead({ run, summary }: HeadProps) {
  const part = partDone(run, summary);
  const left = secondsLeft(run, summary);
  const seconds = took(run);
  return (
    <header class="stack run-head">
      <div class="page-head">
        <h1>{run.name}</h1>
        <StateBadge state={run.state} title={run.reason} />
        <span class="muted" title={run.run}>
          {shortId(run.run)}
        </span>
        <span class="spread" />
        <Actions run={run} />
      </div>
      <div class="row number run-figures">
        {part !== null && <span>{Math.floor(100 * part)} %</span>}
        <span>step {count(summary?.step ?? 0)}</span>
        {run.state === "running" && <span>{count(Math.round(summary?.steps_per_s ?? 0))} steps/s</span>}
        {left !== null && <span>{span(left)} left</span>}
        {summary?.return_mean != null && (
          <span title="over the last 100 episodes">
            return {figure(summary.return_mean)} ± {figure(summary.return_std)}
          </span>
        )}
        {!!summary?.episodes && <span>{count(summary.episodes)} episodes</span>}
        {!!summary?.missing && <span class="error">{count(summary.missing)} events missing</span>}
        <span class="muted">
          {summary?.task || run.worker} · {run.host ?? "no host"} · attempt {run.attempt} of {run.attempts}
          {seconds !== null && ` · ${isFinal(run) ? "took" : "for"} ${span(seconds)}`} · submitted <Ago at={run.submitted_at} />
        </span>
      </div>
      <Progress part={part} label={`progress of ${run.name}`} />
      {run.state !== "running" && run.state !== "succeeded" && (
        <p class={run.state === "failed" || run.state === "lost" ? "failure" : "muted"} id="reason">
          {run.category ? `${run.category}: ` : ""}
          {run.reason} <a href={`/run/${run.run}?tab=why`}>Why?</a>
        </p>
      )}
    </header>
  );
}

function Actions({ run }: { run: RunState }) {
  if (role.value !== "owner") return null;
  const canStart = PAGES.some((page) => page.path === "/start");
  return (
    <div class="row">
      {!isFinal(run) && (
        <button type="button" class="danger" onClick={() => cancelRuns([run])}>
          Stop …
        </button>
      )}
      {canStart && (
        <>
          <a class="button" href={`/start?from=${run.run}`}>
            Duplicate …
          </a>
          {isFinal(run) && (
            <a class="button" href={`/start?resume=${run.run}`}>
              Resume …
            </a>
          )}
          <a class="button" href={`/start?evaluate=${run.run}`}>
            Evaluate …
          </a>
        </>
      )}
    </div>
  );
}
