/** A run's specification as a command, as YAML and as Python: three ways to submit the same. */

import type { RunSpec } from "../bus/types";
import { quote } from "./command";

/** Fields of a run, with their defaults; a field that has its default is left out. */
const DEFAULTS: Record<string, unknown> = {
  profile: "default",
  uses: [],
  interactive: false,
  pythonpath: [],
  config: {},
  name: "",
  resources: { cpus: 1, memory_mb: 1024, gpus: 0 },
  limits: { memory_mb: null, wall_s: null },
  retries: { max: 0, on: ["infrastructure"], delay_s: 5 },
  grace_s: 10,
  priority: 0,
  after: [],
  requires: [],
  wait_for_host: false,
  group: "",
  replaces: "",
};

type Document = Record<string, unknown>;

/** What the gateway puts in the place of a secret: it must not be sent back. */
export const MASKED = "•••";

export function hasSecrets(value: unknown): boolean {
  return JSON.stringify(value).includes(MASKED);
}

function isMap(value: unknown): value is Document {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function same(one: unknown, other: unknown): boolean {
  return JSON.stringify(one) === JSON.stringify(other);
}

/** The specification without what is default; `replaces` names an old run and is no part of a new one. */
export function essential(spec: Partial<RunSpec>): Document {
  const kept: Document = { worker: spec.worker };
  const { profile, name, ...rest } = spec; // what a person looks for first
  for (const [field, value] of Object.entries({ profile, name, ...rest })) {
    if (field === "worker" || value === undefined || field === "replaces" || same(value, DEFAULTS[field])) continue;
    const defaults = DEFAULTS[field];
    if (field !== "config" && isMap(value) && isMap(defaults)) {
      const changed = Object.entries(value).filter(([key, item]) => !same(item, defaults[key]));
      if (changed.length) kept[field] = Object.fromEntries(changed);
    } else kept[field] = value;
  }
  return kept;
}

export function asCommand(spec: Partial<RunSpec>): string {
  const words = ["mosaic", "submit", "--worker", String(spec.worker)];
  for (const [field, value] of Object.entries(essential(spec))) {
    if (field === "worker") continue;
    if (field === "profile" || field === "name") words.push(`--${field}`, quote(String(value)));
    else if (field === "config") {
      for (const [key, item] of flat(value as Document)) {
        // A key that is also a field of a run needs its full name.
        const first = key.split(".")[0] as string;
        words.push(quote(`${first in DEFAULTS || first === "worker" ? `config.${key}` : key}=${scalar(item)}`));
      }
    } else if (isMap(value)) {
      for (const [key, item] of Object.entries(value)) words.push(quote(`${field}.${key}=${scalar(item)}`));
    } else words.push(quote(`${field}=${scalar(value)}`));
  }
  return words.join(" ");
}

/** Nested maps as dotted keys; a map with a key that holds a dot stays one value. */
function flat(document: Document, prefix = ""): [string, unknown][] {
  return Object.entries(document).flatMap(([key, value]): [string, unknown][] => {
    const plain = isMap(value) && Object.keys(value).length > 0 && !Object.keys(value).some((each) => each.includes("."));
    return plain ? flat(value, `${prefix}${key}.`) : [[prefix + key, value]];
  });
}

export function asYaml(spec: Partial<RunSpec>): string {
  return yamlLines(essential(spec), "").join("\n") + "\n";
}

export function asPython(spec: Partial<RunSpec>): string {
  return `import mosaic\n\nrun = mosaic.submit(${python(essential(spec), "")})\nrun.wait()\n`;
}

function yamlLines(document: Document, indent: string): string[] {
  return Object.entries(document).flatMap(([key, value]) => {
    if (isMap(value) && Object.keys(value).length) return [`${indent}${scalar(key)}:`, ...yamlLines(value, `${indent}  `)];
    return [`${indent}${scalar(key)}: ${scalar(value)}`];
  });
}

/** A YAML value on one line. Text that YAML could take for something else is quoted; JSON is YAML. */
function scalar(value: unknown): string {
  if (typeof value !== "string") return JSON.stringify(value);
  const plain = /^[A-Za-z_][\w ./@-]*$/.test(value) && !/^(true|false|null|yes|no|on|off|y|n)$/i.test(value);
  return plain && !value.endsWith(" ") ? value : JSON.stringify(value);
}

function python(value: unknown, indent: string): string {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map((item) => python(item, indent)).join(", ")}]`;
  if (!isMap(value)) return JSON.stringify(value);
  const deeper = `${indent}    `;
  const items = Object.entries(value).map(([key, item]) => `${deeper}${JSON.stringify(key)}: ${python(item, deeper)},`);
  return items.length ? `{\n${items.join("\n")}\n${indent}}` : "{}";
}
