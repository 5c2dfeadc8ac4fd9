/** The fields of a form, made of a worker's JSON Schema and of the hyperparameters of its algorithms. */

import type { AlgorithmCard, Description, JsonSchema } from "./workers";

export interface Field {
  /** Dotted path in the run's specification, such as `config.extras.mode` or `resources.cpus`. */
  path: string;
  /** What the user calls it: the path without `config.`. */
  label: string;
  types: string[];
  choices: string[];
  default: unknown;
  help: string;
}

export interface FormFields {
  /** The fields that the worker's own example gives: those that matter. */
  first: Field[];
  hyperparameters: Field[];
  rest: Field[];
  /** The field that names the algorithm, if the worker has several. */
  algorithm: string;
}

/** The platform sets them. */
const SET_BY_US = new Set(["run_id", "worker_id"]);
const DEEPEST = 6;

/** Fields of every run, whatever its worker. */
export const RUN_FIELDS: Field[] = [
  field("name", ["string"], "", "A readable name; made from the config if left out"),
  field("group", ["string"], "", "The sweep or other set that the run belongs to"),
  field("resources.cpus", ["number"], 1, "CPU cores; fractions are allowed"),
  field("resources.memory_mb", ["integer"], 1024, "Memory in MiB"),
  field("resources.gpus", ["number"], 0, "Whole GPUs, or a share of one, such as 0.5"),
  field("limits.wall_s", ["number", "null"], null, "Time limit of an attempt, in seconds"),
  field("limits.memory_mb", ["integer", "null"], null, "Memory limit, in MiB"),
  field("retries.max", ["integer"], 0, "Further attempts after a failure of the machinery"),
  field("priority", ["integer"], 0, "Higher goes first"),
  field("requires", ["array"], [], "Tags that the host must have, with commas between"),
  field("after", ["array"], [], "Runs that must have succeeded before this one starts"),
];

function field(path: string, types: string[], preset: unknown, help: string): Field {
  return { path, label: path, types, choices: [], default: preset, help };
}

/** All fields of a worker that a form shows, by path. */
export function byPath({ first, hyperparameters, rest }: FormFields): Map<string, Field> {
  return new Map([...first, ...hyperparameters, ...rest].map((each) => [each.path, each]));
}

export function fieldsOf(description: Description, algorithm: string): FormFields {
  const all = flatten(description.config_schema, description.config_schema, "config", DEEPEST);
  const shown = withoutRepetitions(all);
  const names = algorithmField(description, shown);
  const card = description.algorithms.find((each) => each.name.toLowerCase() === algorithm.toLowerCase());
  const hyperparameters = parametersOf(card, description.capabilities.parameters_field ?? "");
  const first = firstFields(description, shown).map((each) =>
    each.path === names ? { ...each, choices: each.choices.length ? each.choices : description.algorithms.map((a) => a.name) } : each,
  );
  const taken = new Set(first.map((each) => each.path));
  const room = description.capabilities.parameters_field;
  const rest = shown.filter((each) => !taken.has(each.path) && !(hyperparameters.length && each.path === `config.${room}`));
  return { first, hyperparameters, rest, algorithm: names };
}

/** Fields that the worker's example gives, but for lists and maps: a field that the example needs is one that matters. */
function firstFields(description: Description, fields: Field[]): Field[] {
  const wanted = Object.entries(description.example_config)
    .filter(([, value]) => typeof value !== "object")
    .map(([name]) => `config.${name}`);
  const required = ((description.config_schema["required"] ?? []) as string[]).map((name) => `config.${name}`);
  const paths = [...new Set([...wanted, ...required])];
  return paths.flatMap((path) => fields.filter((each) => each.path === path));
}

/** The field whose value in the example is the name of one of the worker's algorithms. */
export function algorithmField(description: Description, fields: Field[]): string {
  const names = new Set(description.algorithms.map((card) => card.name.toLowerCase()));
  for (const [name, value] of Object.entries(description.example_config)) {
    if (typeof value === "string" && names.has(value.toLowerCase())) return `config.${name}`;
  }
  return fields.find((each) => typeof each.default === "string" && names.has(each.default.toLowerCase()))?.path ?? "";
}

function parametersOf(card: AlgorithmCard | undefined, room: string): Field[] {
  if (!card || !room) return [];
  const types = { bool: "boolean", int: "integer", float: "number", str: "string" };
  return card.parameters.map((each) => ({
    path: `config.${room}.${each.name}`,
    label: each.name,
    types: [types[each.type]],
    choices: [],
    default: each.default,
    help: each.help,
  }));
}

/** A worker may take a field at the top and in a part, too; the form shows it once, at the top. */
function withoutRepetitions(fields: Field[]): Field[] {
  const top = new Set(fields.filter((each) => each.path.split(".").length === 2).map((each) => each.path.split(".")[1]));
  return fields.filter((each) => each.path.split(".").length === 2 || !top.has(each.path.split(".").at(-1)));
}

function resolve(schema: JsonSchema, root: JsonSchema): JsonSchema {
  const reference = schema["$ref"] as string | undefined;
  if (!reference?.startsWith("#/")) return schema;
  let found: any = root;
  for (const part of reference.slice(2).split("/")) found = found?.[part.replaceAll("~1", "/").replaceAll("~0", "~")];
  return { ...(found ?? {}), ...schema };
}

function flatten(given: JsonSchema, root: JsonSchema, path: string, depth: number): Field[] {
  const properties = (resolve(given, root)["properties"] ?? {}) as Record<string, JsonSchema>;
  return Object.entries(properties).flatMap(([name, raw]) => {
    if (path === "config" && SET_BY_US.has(name)) return [];
    const schema = resolve(raw, root);
    const inner = `${path}.${name}`;
    if (schema["properties"] && depth > 0) return flatten(schema, root, inner, depth - 1);
    return [
      {
        path: inner,
        label: inner.replace(/^config\./, ""),
        types: typesOf(schema, root),
        choices: choicesOf(schema),
        default: schema["default"],
        help: String(schema["description"] ?? ""),
      },
    ];
  });
}

function typesOf(schema: JsonSchema, root: JsonSchema): string[] {
  if (schema["type"]) return [schema["type"]].flat();
  const variants = (schema["anyOf"] ?? schema["oneOf"] ?? []) as JsonSchema[];
  if (variants.length) return [...new Set(variants.flatMap((each) => typesOf(resolve(each, root), root)))];
  const values = (schema["enum"] ?? []) as unknown[];
  return [...new Set(values.map((value) => (value === null ? "null" : typeof value)))];
}

function choicesOf(schema: JsonSchema): string[] {
  const values = (schema["enum"] ?? schema["anyOf"]?.flatMap((each: JsonSchema) => each["enum"] ?? []) ?? []) as unknown[];
  const texts = values.filter((value) => value !== null).map(String);
  // Names that are taken in upper and lower case are offered once.
  return texts.filter((text, i) => texts.findIndex((other) => other.toLowerCase() === text.toLowerCase()) === i);
}

const NUMBER = /^[-+]?(\d[\d_]*\.?[\d_]*|\.\d+)(e[-+]?\d+)?$/i;

/** The value that a text means for a field. What it cannot be stays text, so that the scheduler says what is wrong. */
export function valueOf(given: Field, text: string): unknown {
  const types = new Set(given.types);
  const trimmed = text.trim();
  if (types.has("boolean") && /^(true|false)$/i.test(trimmed)) return trimmed.toLowerCase() === "true";
  if (types.has("null") && trimmed === "null") return null;
  if ((types.has("number") || types.has("integer")) && NUMBER.test(trimmed)) return Number(trimmed.replaceAll("_", ""));
  if (types.has("string") && types.size === 1) return text;
  if (/^[[{"]/.test(trimmed) || !types.size) {
    try {
      return JSON.parse(trimmed);
    } catch {
      return text;
    }
  }
  if (types.has("array") && !types.has("string")) {
    return trimmed.split(",").map((each) => (NUMBER.test(each.trim()) ? Number(each) : each.trim())).filter((each) => each !== "");
  }
  return text;
}

/** A value as it stands in an input; a list or a map as JSON. */
export function textOf(value: unknown): string {
  if (value === undefined) return "";
  if (value === null) return "null";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

export function shortDefault(value: unknown): string {
  if (value === undefined || value === null || value === "") return "not set";
  const text = textOf(value);
  return text.length > 40 ? `${text.slice(0, 39)}…` : text;
}
