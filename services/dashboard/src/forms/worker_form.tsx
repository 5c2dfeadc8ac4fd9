/** The fields of one worker, and everything around them: choice of worker, installation, hyperparameters. */

import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { hosts } from "../bus/states";
import { InstallButton } from "../workers/install";
import { byPath, fieldsOf, RUN_FIELDS, type Field, type FormFields } from "./fields";
import { problemsByField, type Form } from "./form";
import { FieldGroup, FieldInput } from "./inputs";
import { Outcome } from "./outcome";
import { describe, profiles, workerNames, type Described, type Description } from "./workers";

export function WorkerChoice({ form, suits }: { form: Form; suits?: (worker: string) => boolean }) {
  const workers = workerNames.value.filter((worker) => suits?.(worker) ?? true);
  const own = profiles.value.filter((row) => row.worker === form.worker.value);
  const choose = (worker: string, profile = "default") => {
    form.texts.value = {};
    form.checked.value = null;
    form.worker.value = worker;
    form.profile.value = profile;
  };
  return (
    <div class="fields">
      <div class="field">
        <label for="form-worker">worker</label>
        <select id="form-worker" value={form.worker.value} onChange={(event) => choose(event.currentTarget.value)}>
          {workers.map((worker) => (
            <option key={worker} value={worker}>
              {worker}
              {profiles.value.some((row) => row.worker === worker && row.installed) ? "" : " (not installed)"}
            </option>
          ))}
        </select>
      </div>
      {own.length > 1 && (
        <div class="field">
          <label for="form-profile">profile</label>
          <select id="form-profile" value={form.profile.value} onChange={(event) => choose(form.worker.value, event.currentTarget.value)}>
            {own.map((row) => (
              <option key={row.profile} value={row.profile}>
                {row.profile}
                {row.installed ? "" : " (not installed)"}
              </option>
            ))}
          </select>
        </div>
      )}
    </div>
  );
}

/** Why there are no fields yet, or null if there are. */
export function Waiting({ worker, profile, described }: { worker: string; profile: string; described: Described | null }) {
  if (!worker) return <p class="muted">{hosts.value.size ? "Choose a worker." : "No host has reported yet (mosaic status)."}</p>;
  if (described === null) return <p class="muted">Asking {worker} for its fields …</p>;
  if (described.problem) return <p class="error">{described.problem}</p>;
  if (!described.installed) {
    return (
      <div class="stack">
        <p>
          <b>{worker}/{profile}</b> is not installed here. Its fields are known once it is.
        </p>
        <InstallButton worker={worker} profile={profile} main />
      </div>
    );
  }
  return null;
}

export interface FieldsProps {
  form: Form;
  description: Description;
  /** Paths of the fields that matter here; those of the worker's example if left out. */
  first?: string[] | undefined;
  action: string;
  command?: string | null;
  /** Fields that a choice in `children` fills in, and what to say until something is chosen. */
  picked?: { paths: string[]; ask: string };
  /** Something between the choice and the fields, such as a list of checkpoints. */
  children?: ComponentChildren;
}

/** All fields of a worker, with what they make beside them. */
export function WorkerFields({ form, description, first, action, command, picked, children }: FieldsProps) {
  const algorithmOf = (fields: FormFields) =>
    form.text(fields.algorithm) || String(description.example_config[fields.algorithm.replace("config.", "")] ?? "");
  const named = algorithmOf(fieldsOf(description, ""));
  const found = fieldsOf(description, named);
  const all = [...byPath(found).values()];
  const known = all.map((each) => each.path).join(" ");
  const room = description.capabilities.parameters_field ?? "";
  useEffect(() => {
    form.known.value = byPath(found);
    form.algorithm = { field: found.algorithm, room: room && `config.${room}` };
  }, [known]);
  useEffect(() => form.startChecking(), [form]);
  const shown = [...all, ...RUN_FIELDS].map((each) => each.path);
  const problems = problemsByField(form.checked.value?.problems ?? [], shown);
  // Nothing is wrong as long as nothing was chosen: the groups stay closed, and the list asks for a choice.
  const unpicked = (picked?.paths ?? []).filter((path) => !form.text(path) && problems.has(path));
  for (const path of unpicked) problems.delete(path);
  const top = first ? first.flatMap((path) => all.filter((each) => each.path === path)) : found.first;
  const taken = new Set(top.map((each) => each.path));
  const without = (fields: Field[]) => fields.filter((each) => !taken.has(each.path));
  const suggestions = (field: Field) => (field.path.endsWith("env_id") ? description.environments : []);
  const card = description.algorithms.find((each) => each.name.toLowerCase() === named.toLowerCase());
  return (
    <div class="form-columns">
      <div class="stack">
        {children}
        {picked && unpicked.length > 0 && <p role="status">{picked.ask}</p>}
        <section class="card" aria-label="Fields that matter">
          <div class="fields first">
            {top.map((field) => (
              <FieldInput key={field.path} form={form} field={field} problems={problems.get(field.path)} suggestions={suggestions(field)} open />
            ))}
          </div>
          {card && !card.runs && !problems.size && <p class="error">{card.needs}</p>}
        </section>
        <section class="card" aria-label="All other fields">
          <FieldGroup title={`All hyperparameters${named ? ` of ${named}` : ""}`} form={form} fields={without(found.hyperparameters)} problems={problems} />
          <FieldGroup
            title={found.hyperparameters.length ? "All other settings" : "All hyperparameters and settings"}
            form={form}
            fields={without([...found.first, ...found.rest])}
            problems={problems}
            suggestions={suggestions}
          />
          <FieldGroup title="Name, resources, retries" form={form} fields={RUN_FIELDS} problems={problems} />
        </section>
      </div>
      <Outcome form={form} action={action} shown={shown} command={command ?? null} />
    </div>
  );
}

export function describedBy(form: Form): Described | null {
  return form.worker.value ? describe(form.worker.value, form.profile.value) : null;
}
