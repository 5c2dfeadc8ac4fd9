/** Runs that differ only in their seed are one setting, as `mosaic compare` has it. Pure. */

import type { RunSpec } from "../bus/types";

export interface Setting {
  label: string;
  /** What tells it from other settings, by dotted path. */
  values: Record<string, unknown>;
  runs: string[];
}

/** What says nothing about how a run learns, or is the seed. */
const NOT_VARIED = new Set(["name", "group", "replaces"]);
const FOLDED = new Set(["config.seed", "config.total_episodes"]);
const NOT_A_SETTING = ["resources.", "limits.", "retries.", "priority", "grace_s", "after", "requires", "wait_for_host"];
const LONGEST_LABEL = 50;

type Flat = Record<string, unknown>;

export function flatten(document: object, prefix = ""): Flat {
  const flat: Flat = {};
  for (const [key, value] of Object.entries(document)) {
    if (typeof value === "object" && value !== null && !Array.isArray(value)) Object.assign(flat, flatten(value, `${prefix}${key}.`));
    else flat[prefix + key] = value;
  }
  return flat;
}

function flatSpec(spec: RunSpec): Flat {
  return flatten(Object.fromEntries(Object.entries(spec).filter(([key]) => !NOT_VARIED.has(key))));
}

/** Paths whose values are not the same in all runs. */
export function varying(specs: ReadonlyMap<string, RunSpec>): string[] {
  const flat = [...specs.values()].map(flatSpec);
  const paths = new Set(flat.flatMap((each) => Object.keys(each)));
  return [...paths].filter((path) => new Set(flat.map((each) => JSON.stringify(each[path]))).size > 1);
}

/** Paths by which settings are told apart: all that vary but the seed and what only says where a run is placed. */
export function settingPaths(specs: ReadonlyMap<string, RunSpec>): string[] {
  return varying(specs).filter((path) => !FOLDED.has(path) && !NOT_A_SETTING.some((prefix) => path.startsWith(prefix)));
}

export function valueAt(spec: RunSpec, path: string): unknown {
  return flatSpec(spec)[path];
}

/** The shortest unambiguous end of each path. */
export function shortNames(paths: readonly string[]): Map<string, string> {
  return new Map(
    paths.map((path) => {
      const parts = path.replace(/^config\./, "").split(".");
      for (let n = 1; n <= parts.length; n++) {
        const tail = parts.slice(-n).join(".");
        if (n === parts.length || !paths.some((other) => other !== path && `.${other}`.endsWith(`.${tail}`))) return [path, tail];
      }
      return [path, path];
    }),
  );
}

export function fold(specs: ReadonlyMap<string, RunSpec>, names: ReadonlyMap<string, string>, by: "setting" | "run"): Setting[] {
  if (by === "run") return [...specs.keys()].map((run) => ({ label: names.get(run) ?? run, values: {}, runs: [run] }));
  const paths = settingPaths(specs);
  const short = shortNames(paths);
  const found = new Map<string, Setting>();
  for (const [run, spec] of specs) {
    const flat = flatSpec(spec);
    const values = Object.fromEntries(paths.map((path) => [path, flat[path]]));
    const given = paths.filter((path) => flat[path] !== undefined && flat[path] !== null);
    const label = given.map((path) => `${short.get(path)}=${text(flat[path])}`).join(" ") || baseName(names.get(run) ?? spec.worker);
    const key = JSON.stringify(values);
    const setting = found.get(key) ?? { label, values, runs: [] };
    setting.runs.push(run);
    found.set(key, setting);
  }
  return labelled([...found.values()], names);
}

/** Settings with too much to read are called by the name of their runs, if no two would be called alike. */
function labelled(settings: Setting[], names: ReadonlyMap<string, string>): Setting[] {
  if (!settings.some((each) => each.label.length > LONGEST_LABEL)) return settings;
  const bases = settings.map((each) => new Set(each.runs.map((run) => baseName(names.get(run) ?? run))));
  if (new Set(bases.flatMap((each) => [...each])).size !== settings.length) return settings;
  return settings.map((each, i) => ({ ...each, label: [...(bases[i] as Set<string>)][0] as string }));
}

export function baseName(name: string): string {
  return name.replace(/-seed\d+$/, "");
}

export function text(value: unknown): string {
  if (typeof value === "number") return String(Number(value.toPrecision(6)));
  return typeof value === "string" ? value : JSON.stringify(value ?? null);
}
