/** Start: four forms made of what workers say about themselves. What a form submits is shown while it is filled in. */

import "../styles/forms.css";
import { useEffect, useMemo } from "preact/hooks";
import { role } from "../bus/connection";
import { hosts, known } from "../bus/states";
import { describedBy, Waiting, WorkerChoice, WorkerFields } from "../forms/worker_form";
import { FromCheckpoint } from "../forms/from_checkpoint";
import { useDuplicate } from "../forms/duplicate";
import { Form } from "../forms/form";
import { ScriptForm } from "../forms/script_form";
import { byPath, fieldsOf } from "../forms/fields";
import { describe, profiles, workerNames, type Description } from "../forms/workers";
import { Empty } from "../parts/empty";
import { currentTab, Tabs } from "../parts/tabs";
import { query } from "../router";

const TABS = ["Train", "Script", "Resume", "Evaluate a policy"] as const;

function chosenTab(): (typeof TABS)[number] {
  if (query.value.get("tab")) return currentTab(TABS);
  return query.value.get("resume") ? "Resume" : query.value.get("evaluate") ? "Evaluate a policy" : "Train";
}

export function Start() {
  if (!known.value) return <p class="muted">Waiting for the first news …</p>;
  return (
    <div class="start">
      <h1>Start a run</h1>
      {role.value === "viewer" ? (
        <Empty command="mosaic open">You may look and not start anything. An owner's address is printed by</Empty>
      ) : hosts.value.size ? (
        <Forms />
      ) : (
        <Empty command="mosaic up">No host has reported yet, so there is nowhere to start a run.</Empty>
      )}
    </div>
  );
}

function Forms() {
  const tab = chosenTab();
  return (
    <>
      <Tabs names={TABS} label="Kinds of runs" current={tab} />
      {tab === "Train" && <TrainForm />}
      {tab === "Script" && <ScriptForm />}
      {tab === "Resume" && <FromCheckpoint kind="resume" />}
      {tab === "Evaluate a policy" && <FromCheckpoint kind="evaluate" />}
    </>
  );
}

/** Whether a worker is for people: its example has plain fields. Others are driven by services, as the arena is. */
function isForPeople(worker: string): boolean {
  const rows = profiles.value.filter((row) => row.worker === worker);
  const found = rows.map((row) => describe(row.worker, row.profile)?.description).filter((each) => !!each);
  return !found.length || found.some((each) => Object.values(each.example_config).some((value) => typeof value !== "object"));
}

/** The worker to begin with: the one in the address, or the installed one that has the most to offer. */
function firstWorker(): string {
  const asked = query.value.get("worker");
  if (asked && workerNames.value.includes(asked)) return asked;
  const installed = profiles.value.filter((row) => row.installed && isForPeople(row.worker));
  const described = installed.map((row) => ({ row, about: describe(row.worker, row.profile) }));
  if (described.some((each) => each.about === null)) return "";
  const offers = (each: (typeof described)[number]) => each.about?.description?.algorithms.filter((card) => card.runs).length ?? 0;
  const best = described.sort((a, b) => offers(b) - offers(a))[0]?.row.worker;
  return best ?? workerNames.value.find(isForPeople) ?? "";
}

function TrainForm() {
  const form = useMemo(() => new Form(), []);
  const duplicate = useDuplicate(form);
  const first = firstWorker();
  useEffect(() => {
    if (!first || form.worker.peek() || duplicate.asked) return;
    form.worker.value = first;
    form.profile.value = query.peek().get("profile") ?? "default";
  }, [first, duplicate.asked]);
  const described = describedBy(form);
  const description = described?.description ?? null;
  useExample(form, description, duplicate.asked);
  return (
    <div class="stack">
      {duplicate.note && <p class={duplicate.failed ? "error" : "muted"}>{duplicate.note}</p>}
      <WorkerChoice form={form} suits={isForPeople} />
      {description ? (
        <WorkerFields form={form} description={description} action="Start run">
          <p class="muted">{description.metadata.description}</p>
        </WorkerFields>
      ) : (
        <Waiting worker={form.worker.value} profile={form.profile.value} described={described} />
      )}
    </div>
  );
}

/** A new form begins with the worker's own example, so that it can be started as it is. */
function useExample(form: Form, description: Description | null, duplicated: boolean): void {
  useEffect(() => {
    if (!description || duplicated || Object.keys(form.texts.peek()).length) return;
    // Effects run after the page was drawn; meanwhile another worker may have been chosen.
    if (description.worker !== form.worker.peek() || description.profile !== form.profile.peek()) return;
    const fields = fieldsOf(description, "");
    const asked = query.peek().get("algo");
    const card = description.algorithms.find((each) => each.name === asked);
    const named = String(description.example_config[fields.algorithm.replace("config.", "")] ?? "");
    // Maps are taken apart where the form has fields for what is in them.
    form.known.value = byPath(fieldsOf(description, named));
    const room = `config.${description.capabilities.parameters_field}.`;
    const other = card && card.name !== named;
    form.fill({ config: description.example_config }, { only: (path) => !other || !path.startsWith(room) });
    if (card && fields.algorithm) form.set(fields.algorithm, card.name);
  }, [description]);
}
