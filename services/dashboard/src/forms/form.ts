/** What a form holds: texts by field, the specification that they make, and what the scheduler says about it. */

import { computed, effect, signal, type ReadonlySignal, type Signal } from "@preact/signals";
import { api, explain, type Problem } from "../bus/api";
import type { RunSpec } from "../bus/types";
import { hasSecrets } from "../parts/spec";
import { RUN_FIELDS, textOf, valueOf, type Field } from "./fields";

type Document = Record<string, unknown>;
const CHECK_AFTER_MS = 250;

export interface Checked {
  ok: boolean;
  run_name: string;
  problems: Problem[];
  warnings: string[];
}

export class Form {
  readonly worker = signal("");
  readonly profile = signal("default");
  /** What was typed, by path. A field that is not in it has its default. */
  readonly texts: Signal<Readonly<Record<string, string>>> = signal({});
  /** Fields that were left out since the page does not get to see their values. */
  readonly secrets: Signal<string[]> = signal([]);
  /** The field that names the algorithm, and the part of the configuration with its hyperparameters. */
  algorithm = { field: "", room: "" };
  /** The fields of the worker, by path. */
  readonly known: Signal<ReadonlyMap<string, Field>> = signal(new Map());
  readonly checked: Signal<Checked | null> = signal(null);
  readonly busy = signal(false);
  readonly problem = signal("");
  readonly spec: ReadonlySignal<Partial<RunSpec>>;

  constructor() {
    this.spec = computed(() => this.make());
  }

  text(path: string): string {
    return this.texts.value[path] ?? "";
  }

  set(path: string, text: string): void {
    const next = { ...this.texts.peek() };
    const { field, room } = this.algorithm;
    // The hyperparameters of another algorithm may mean nothing to this one.
    if (room && path === field) for (const each of Object.keys(next)) if (each.startsWith(`${room}.`)) delete next[each];
    if (text === "") delete next[path];
    else next[path] = text;
    this.texts.value = next;
  }

  /** Take over a specification. */
  fill(spec: Partial<RunSpec>, options: { only?: (path: string) => boolean } = {}): void {
    const next: Record<string, string> = {};
    const hidden: string[] = [];
    for (const [path, value] of leaves(spec, this.known.peek())) {
      if (path === "worker" || path === "profile" || options.only?.(path) === false) continue;
      if (hasSecrets(value)) hidden.push(path);
      else next[path] = textOf(value);
    }
    this.texts.value = next;
    this.secrets.value = hidden;
  }

  private make(): Partial<RunSpec> {
    const document: Document = { worker: this.worker.value, profile: this.profile.value, config: {} };
    for (const [path, text] of Object.entries(this.texts.value)) {
      const field = this.known.value.get(path) ?? RUN_FIELDS.find((each) => each.path === path);
      const untyped: Field = { path, label: path, types: [], choices: [], default: undefined, help: "" };
      put(document, path.split("."), valueOf(field ?? untyped, text));
    }
    return document as Partial<RunSpec>;
  }

  /** Ask the scheduler after each change; the returned function ends that. */
  startChecking(): () => void {
    let timer = 0;
    let asking: AbortController | null = null;
    const stop = effect(() => {
      const spec = this.spec.value;
      clearTimeout(timer);
      asking?.abort();
      if (!spec.worker) return;
      timer = window.setTimeout(async () => {
        const mine = (asking = new AbortController());
        try {
          this.checked.value = await api<Checked>("scheduler", "check", { spec }, mine.signal);
          this.problem.value = "";
        } catch (error) {
          if (!mine.signal.aborted) this.problem.value = explain(error);
        }
      }, CHECK_AFTER_MS);
    });
    return () => {
      clearTimeout(timer);
      asking?.abort();
      stop();
    };
  }

  /** Submit, and return the id of the run; null if it was refused. */
  async submit(): Promise<string | null> {
    this.busy.value = true;
    try {
      const made = await api<{ run: string }>("scheduler", "submit", { spec: this.spec.peek() });
      return made.run;
    } catch (error) {
      this.problem.value = explain(error);
      return null;
    } finally {
      this.busy.value = false;
    }
  }
}

/** Problems by the field beside which they are shown; those without one come under an empty path. */
export function problemsByField(problems: Problem[], shown: Iterable<string>): Map<string, Problem[]> {
  const paths = new Set(shown);
  const found = new Map<string, Problem[]>();
  for (const problem of problems) {
    let path = problem.field;
    // A problem inside of a list or a map belongs to the field that holds it.
    while (path && !paths.has(path)) path = path.includes(".") ? path.slice(0, path.lastIndexOf(".")) : "";
    found.set(path, [...(found.get(path) ?? []), problem]);
  }
  return found;
}

function put(document: Document, keys: string[], value: unknown): void {
  let inner = document;
  for (const key of keys.slice(0, -1)) {
    const next = inner[key];
    inner = (inner[key] = typeof next === "object" && next !== null && !Array.isArray(next) ? next : {}) as Document;
  }
  inner[keys.at(-1) as string] = value;
}

/** The values of a document by path: down to the fields that are known, or to what is no map. */
function leaves(value: unknown, known: ReadonlyMap<string, Field>, path = ""): [string, unknown][] {
  const isMap = typeof value === "object" && value !== null && !Array.isArray(value);
  if (!isMap || known.has(path)) return path && value !== null ? [[path, value]] : [];
  return Object.entries(value).flatMap(([key, inner]) => leaves(inner, known, path ? `${path}.${key}` : key));
}

/** Fill a template of a worker: a value such as `{checkpoint}` is replaced, if there is something for it. */
export function fillTemplate(template: Record<string, unknown>, values: Record<string, string>): [string, string][] {
  return Object.entries(template).flatMap(([path, value]): [string, string][] => {
    const filled = typeof value === "string" && value in values ? values[value] : textOf(value);
    const open = typeof filled === "string" && /^\{\w+\}$/.test(filled);
    return filled && !open ? [[`config.${path}`, filled]] : [];
  });
}

/** Paths of a template whose values are picked from a list. */
export function pickedPaths(template: Record<string, unknown>): string[] {
  return Object.entries(template)
    .filter(([, value]) => value === "{checkpoint}" || value === "{script}")
    .map(([path]) => `config.${path}`);
}

/** Paths of a template whose values the user gives, but for those that are picked from a list. */
export function askedPaths(template: Record<string, unknown>): string[] {
  return Object.entries(template)
    .filter(([, value]) => typeof value === "string" && /^\{\w+\}$/.test(value) && !["{checkpoint}", "{script}"].includes(value))
    .map(([path]) => `config.${path}`);
}
