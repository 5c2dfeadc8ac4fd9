/** Run: everything about one run. Curves and frame above, details in tabs below. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { api, explain, Refusal } from "../../bus/api";
import { link } from "../../bus/connection";
import { loadSummaries, summaryOf } from "../../bus/all_runs";
import { runs } from "../../bus/states";
import { isFinal, type RunDetail, type RunState } from "../../bus/types";
import { Copy } from "../../parts/command";
import { Empty } from "../../parts/empty";
import { asCommand, asPython, asYaml, hasSecrets, MASKED } from "../../parts/spec";
import { currentTab, Tabs } from "../../parts/tabs";
import { Attempts } from "./attempts";
import { Checkpoints } from "./checkpoints";
import { Config } from "./config";
import { RunCharts } from "./charts";
import { Events } from "./events";
import { Files } from "./files";
import { RunFrame } from "./frame";
import { RunHead } from "./head";
import { Log } from "./log";
import { ResourcesTab } from "./resources";
import { Why } from "./why";

const TABS = ["Config", "Log", "Checkpoints", "Videos", "Artifacts", "Resources", "Attempts", "Why", "Raw events"] as const;

export function Run({ params }: { params: Record<string, string> }) {
  const id = params["run"] as string;
  const detail = useSignal<RunDetail | null>(null);
  const problem = useSignal<Refusal | string | null>(null);
  const state = runs.value.get(id);
  const version = state?.version ?? 0;
  useEffect(() => {
    const stop = new AbortController();
    api<RunDetail>("scheduler", "show", { run: id }, stop.signal).then(
      (found) => {
        detail.value = found;
        problem.value = null;
      },
      (error) => {
        if (!stop.signal.aborted && error instanceof Refusal && error.code !== "no_connection") problem.value = error;
        else if (!stop.signal.aborted && !detail.value) problem.value = explain(error);
      },
    );
    return () => stop.abort();
  }, [id, version, link.value === "open"]);

  const run = state ?? detail.value?.run;
  if (!run) {
    return problem.value ? (
      <div class="stack">
        <h1>Run</h1>
        <Empty command="mosaic runs">
          {problem.value instanceof Error ? problem.value.message : problem.value}. <a href="/runs">See all runs</a>, or list them:
        </Empty>
      </div>
    ) : (
      <p class="muted">Waiting for the run …</p>
    );
  }
  return <RunView run={run} detail={detail.value} />;
}

function CopyAs({ detail }: { detail: RunDetail }) {
  return (
    <div class="row">
      <span class="muted">copy as</span>
      <Copy text={asCommand(detail.spec)}>command</Copy>
      <Copy text={asYaml(detail.spec)}>YAML</Copy>
      <Copy text={asPython(detail.spec)}>Python</Copy>
      {hasSecrets(detail.spec) && <span class="muted">with {MASKED} for secrets</span>}
    </div>
  );
}

function RunView({ run, detail }: { run: RunState; detail: RunDetail | null }) {
  const summary = summaryOf(run.run);
  useEffect(() => {
    if (isFinal(run)) void loadSummaries([run.run]);
  }, [run.run, isFinal(run)]);
  const tab = currentTab(TABS);
  return (
    <div class="stack" data-run={run.run}>
      <RunHead run={run} summary={summary} />
      <div class="run-top">
        <RunCharts run={run} summary={summary} />
        <RunFrame run={run} live={!isFinal(run)} />
      </div>
      <section class="card">
        <div class="run-tabs">
          <Tabs names={TABS} label="Details of the run" />
          {detail && <CopyAs detail={detail} />}
        </div>
        <div role="tabpanel" aria-labelledby={`tab-${tab.toLowerCase().replaceAll(" ", "-")}`}>
          {tab === "Config" && <Config detail={detail} />}
          {tab === "Log" && <Log run={run} />}
          {tab === "Checkpoints" && <Checkpoints run={run} version={summary?.checkpoint ?? ""} />}
          {tab === "Videos" && <Files run={run} detail={detail} kind="videos" />}
          {tab === "Artifacts" && <Files run={run} detail={detail} kind="artifacts" />}
          {tab === "Resources" && <ResourcesTab run={run} detail={detail} />}
          {tab === "Attempts" && <Attempts run={run} detail={detail} />}
          {tab === "Why" && <Why run={run} />}
          {tab === "Raw events" && <Events run={run} />}
        </div>
      </section>
    </div>
  );
}
