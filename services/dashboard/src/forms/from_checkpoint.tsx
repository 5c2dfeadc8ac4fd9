/** Resume and evaluate: a run, one of its checkpoints, and the fields that the worker asks for. */

import { useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { api, explain } from "../bus/api";
import { allRuns, summaryOf, wantAllRuns } from "../bus/all_runs";
import type { RunDetail, RunState } from "../bus/types";
import { Ago } from "../parts/badges";
import { Empty } from "../parts/empty";
import { count, figure, shortId } from "../parts/format";
import { quote } from "../parts/command";
import { essential } from "../parts/spec";
import { query, setQuery } from "../router";
import { algorithmField } from "./fields";
import { askedPaths, fillTemplate, Form } from "./form";
import type { Description } from "./workers";
import { describedBy, Waiting, WorkerFields } from "./worker_form";

interface Checkpoint {
  attempt: number;
  step: number | null;
  ts: number | null;
  best: boolean;
  score: number | null;
  path: string;
}

type Kind = "resume" | "evaluate";
const WORDS = {
  resume: { action: "Resume training", suffix: "resumed", cannot: "cannot train on from a checkpoint of another run" },
  evaluate: { action: "Evaluate", suffix: "evaluated", cannot: "does not say how to evaluate a checkpoint" },
};

export function FromCheckpoint({ kind }: { kind: Kind }) {
  const run = query.value.get(kind) ?? "";
  const detail = useSignal<RunDetail | null>(null);
  useEffect(() => wantAllRuns(), []);
  const saved = useSignal<Checkpoint[]>([]);
  const problem = useSignal("");
  useEffect(() => {
    detail.value = null;
    saved.value = [];
    problem.value = "";
    if (!run) return;
    const ask = async () => {
      detail.value = await api<RunDetail>("scheduler", "show", { run });
      const id = detail.value.run.run;
      saved.value = (await api<{ checkpoints: Checkpoint[] }>("telemetry", "checkpoints", { run: id, limit: 200 })).checkpoints;
    };
    ask().catch((error) => (problem.value = explain(error)));
  }, [run]);
  return (
    <div class="stack">
      <RunChoice kind={kind} chosen={detail.value?.run ?? null} />
      {problem.value && (
        <p class="error" role="alert">
          {problem.value}
        </p>
      )}
      {detail.value && <CheckpointForm key={detail.value.run.run + kind} kind={kind} detail={detail.value} saved={saved.value} />}
    </div>
  );
}

function RunChoice({ kind, chosen }: { kind: Kind; chosen: RunState | null }) {
  const found = allRuns.value.filter((run) => summaryOf(run.run)?.checkpoint || run.run === chosen?.run);
  if (!found.length) {
    return (
      <Empty command="mosaic submit --worker cleanrl algo=ppo env_id=CartPole-v1 total_timesteps=20000">
        No run has saved a checkpoint yet. Train one first: <a href="/start">the form</a>, or
      </Empty>
    );
  }
  return (
    <div class="fields">
      <div class="field whole">
        <label for="form-run">run</label>
        <select id="form-run" value={chosen?.run ?? ""} onChange={(event) => setQuery({ [kind]: event.currentTarget.value, tab: null })}>
          <option value="">choose a run with checkpoints …</option>
          {found.map((run) => (
            <option key={run.run} value={run.run}>
              {run.name} · {run.worker} · {run.state} · {shortId(run.run)}
            </option>
          ))}
        </select>
      </div>
    </div>
  );
}

function CheckpointForm({ kind, detail, saved }: { kind: Kind; detail: RunDetail; saved: Checkpoint[] }) {
  const form = useMemo(() => {
    const made = new Form();
    made.worker.value = detail.spec.worker;
    made.profile.value = detail.spec.profile;
    return made;
  }, []);
  const which = useSignal("");
  const described = describedBy(form);
  const description = described?.description ?? null;
  const template = (kind === "resume" ? description?.capabilities.resume_config : description?.capabilities.evaluate_config) ?? {};
  const able = Object.keys(template).length > 0;
  useEffect(() => {
    if (!saved.length || which.peek()) return;
    which.value = saved.some((each) => each.best) && kind === "evaluate" ? "best" : "last";
  }, [saved.length]);
  useEffect(() => {
    if (description && able) begin(form, kind, detail, description);
  }, [description]);
  useEffect(() => {
    if (!which.value || !able) return;
    for (const [path, text] of fillTemplate(template, { "{checkpoint}": `run:${referenceOf(detail.run)}@${which.value}` })) form.set(path, text);
  }, [which.value, description]);
  if (!description) return <Waiting worker={form.worker.value} profile={form.profile.value} described={described} />;
  if (!able) {
    return (
      <p class="error">
        {form.worker.value}/{form.profile.value} {WORDS[kind].cannot}.
      </p>
    );
  }
  const command = kind === "resume" ? resumeCommand(form, detail, which.value, template) : null;
  return (
    <WorkerFields form={form} description={description} first={askedPaths(template)} action={WORDS[kind].action} command={command}>
      <CheckpointList saved={saved} which={which.value} choose={(next) => (which.value = next)} />
    </WorkerFields>
  );
}

/** The name of a run if it is the only one that is called so, or its id. */
function referenceOf(run: RunState): string {
  const namesakes = allRuns.peek().filter((each) => each.name === run.name);
  return namesakes.some((each) => each.run !== run.run) ? run.run : run.name;
}

/** The fields of the run that the new one keeps: all to train on; to evaluate, which algorithm in which environment. */
function begin(form: Form, kind: Kind, detail: RunDetail, description: Description): void {
  const names = algorithmField(description, []);
  const kept = (path: string) => kind === "resume" || path === names || /(^|\.)env_id$|(^|\.)env_kwargs(\.|$)/.test(path);
  form.fill(essential({ ...detail.spec, group: "" }), { only: kept });
  form.set("name", `${detail.run.name}-${WORDS[kind].suffix}`.slice(0, 120));
}

/** `mosaic resume` does the same, if nothing but the checkpoint and the steps was changed. */
function resumeCommand(form: Form, detail: RunDetail, which: string, template: Record<string, unknown>): string | null {
  const own = Object.entries(template).find(([, value]) => value === "{steps}")?.[0];
  const stepsPath = own ? `config.${own}` : "";
  const steps = form.text(stepsPath);
  const before = new Form();
  before.known.value = form.known.value;
  before.fill(essential({ ...detail.spec, group: "" }));
  const ignored = new Set([stepsPath, "name", ...Object.keys(template).map((path) => `config.${path}`)]);
  const rest = (texts: Readonly<Record<string, string>>) =>
    JSON.stringify(Object.entries(texts).filter(([path]) => !ignored.has(path)).sort());
  if (rest(form.texts.value) !== rest(before.texts.value) || form.text("name") !== `${detail.run.name}-resumed`) return null;
  const words = ["mosaic resume", quote(referenceOf(detail.run)), ...(steps ? [`--steps ${steps}`] : [])];
  return [...words, ...(which === "last" ? [] : [`--from ${which}`])].join(" ");
}

function CheckpointList({ saved, which, choose }: { saved: Checkpoint[]; which: string; choose: (which: string) => void }) {
  if (!saved.length) return <p class="muted">This run has saved no checkpoint.</p>;
  const best = saved.findLast((each) => each.best);
  const offered: { which: string; about: string; at: Checkpoint }[] = [
    { which: "last", about: "last", at: saved.at(-1) as Checkpoint },
    ...(best ? [{ which: "best", about: "best", at: best }] : []),
    ...saved.filter((each) => each.step !== null).reverse().slice(0, 50).map((each) => ({ which: String(each.step), about: `step ${count(each.step ?? 0)}`, at: each })),
  ];
  return (
    <section class="card" aria-label="Checkpoints">
      <h2>Checkpoint</h2>
      <ul class="choices short">
        {offered.map((each) => (
          <li key={each.which + each.at.attempt}>
            <label class={each.which === which ? "chosen" : ""}>
              <input type="radio" name="checkpoint" checked={each.which === which} onChange={() => choose(each.which)} />
              <span>
                <b>{each.about}</b>{" "}
                <span class="muted number">
                  {each.about.startsWith("step") ? "" : `step ${count(each.at.step ?? 0)} · `}attempt {each.at.attempt}
                  {each.at.score !== null && ` · score ${figure(each.at.score)}`} · <Ago at={each.at.ts} />
                </span>
              </span>
            </label>
          </li>
        ))}
      </ul>
    </section>
  );
}
