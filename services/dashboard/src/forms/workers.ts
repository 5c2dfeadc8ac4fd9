/** Workers on all hosts, and how each describes itself. */

import { computed, signal } from "@preact/signals";
import { api, explain, Refusal } from "../bus/api";
import { hosts } from "../bus/states";
import type { EnvironmentStatus } from "../bus/types";

export type JsonSchema = Record<string, any>;

export interface Parameter {
  name: string;
  type: "bool" | "int" | "float" | "str";
  default: unknown;
  help: string;
}

export interface AlgorithmCard {
  name: string;
  family: string;
  actions: string;
  runs: boolean;
  profiles: string[];
  needs: string;
  source: string;
  parameters: Parameter[];
}

export interface Capabilities {
  resume_config?: Record<string, unknown>;
  evaluate_config?: Record<string, unknown>;
  script_config?: Record<string, unknown>;
  parameters_field?: string;
  estimated_memory_mb?: number;
  [capability: string]: unknown;
}

export interface Description {
  worker: string;
  profile: string;
  status: string;
  metadata: { description?: string; version?: string; upstream_library?: string | null; upstream_version?: string | null };
  capabilities: Capabilities;
  config_schema: JsonSchema;
  example_config: Record<string, unknown>;
  algorithms: AlgorithmCard[];
  environments: string[];
}

/** One profile of one worker, on all hosts that have it. */
export interface Profile {
  worker: string;
  profile: string;
  places: { host: string; environment: EnvironmentStatus }[];
  installed: boolean;
}

export const profiles = computed<Profile[]>(() => {
  const found = new Map<string, Profile>();
  for (const host of hosts.value.values()) {
    for (const environment of host.environments) {
      const key = `${environment.worker}/${environment.profile}`;
      const row = found.get(key) ?? { worker: environment.worker, profile: environment.profile, places: [], installed: false };
      row.places.push({ host: host.host, environment });
      row.installed ||= environment.status === "installed";
      found.set(key, row);
    }
  }
  const order = (row: Profile) => `${row.worker} ${row.profile === "default" ? "" : row.profile}`;
  return [...found.values()].sort((a, b) => (order(a) < order(b) ? -1 : 1));
});

export const workerNames = computed(() => [...new Set(profiles.value.map((row) => row.worker))]);

export interface Described {
  description: Description | null;
  /** Why there is none: not installed, or another refusal. */
  problem: string;
  installed: boolean;
}

const cache = new Map<string, { fingerprint: string; found: ReturnType<typeof signal<Described | null>> }>();

/** A signal with the description of a worker; null while it is asked for. It is asked for again when it changes. */
export function describe(worker: string, profile: string): Described | null {
  const row = profiles.value.find((each) => each.worker === worker && each.profile === profile);
  if (!row) return { description: null, problem: `No host has ${worker}/${profile}.`, installed: false };
  const place = row.places.find((each) => each.environment.status === "installed");
  if (!place) return { description: null, problem: "", installed: false };
  const key = `${worker}/${profile}`;
  const fingerprint = `${place.host} ${(place.environment as { fingerprint?: string }).fingerprint ?? ""}`;
  let entry = cache.get(key);
  if (entry?.fingerprint !== fingerprint) {
    entry = { fingerprint, found: signal<Described | null>(entry?.found.peek() ?? null) };
    cache.set(key, entry);
    void ask(place.host, worker, profile, entry.found);
  }
  return entry.found.value ?? null;
}

async function ask(host: string, worker: string, profile: string, found: { value: Described | null | undefined }): Promise<void> {
  try {
    const description = await api<Description>(`supervisor.${host}`, "describe", { worker, profile });
    found.value = { description, problem: "", installed: true };
  } catch (error) {
    const missing = error instanceof Refusal && error.code === "not_installed";
    found.value = { description: null, problem: missing ? "" : explain(error), installed: !missing };
    cache.delete(`${worker}/${profile}`);
  }
}
