/** A host: what it has, what is used, and the runs on it. */

import type { ComponentChildren } from "preact";
import { runs } from "../bus/states";
import type { HostState } from "../bus/types";
import { count } from "./format";
import { Meter } from "./meter";

const MOST_RUNS = 4;

/** The sum of the resources that live attempts of a host hold. */
export function allocated(host: HostState): { cpus: number; memory_mb: number; gpus: Record<string, number> } {
  const gpus: Record<string, number> = {};
  let cpus = 0;
  let memory_mb = 0;
  for (const each of host.attempts) {
    if (each.phase === "ended") continue;
    cpus += each.resources.cpus;
    memory_mb += each.resources.memory_mb;
    for (const [id, share] of Object.entries(each.gpus)) gpus[id] = (gpus[id] ?? 0) + share;
  }
  return { cpus, memory_mb, gpus };
}

export function HostMeters({ host }: { host: HostState }) {
  const held = allocated(host);
  const gb = (mb: number) => (mb / 1024).toFixed(1);
  return (
    <>
      <Meter label="CPU" part={host.cpu_percent / 100}>{`${Math.round(host.cpu_percent)} %`}</Meter>
      <Meter label="RAM" part={host.memory_used_mb / host.total.memory_mb}>
        {`${gb(host.memory_used_mb)} / ${gb(host.total.memory_mb)} GB`}
      </Meter>
      <Meter label="Allocated" part={held.cpus / host.total.cpus}>
        {`${+held.cpus.toFixed(2)} of ${host.total.cpus} CPUs`}
      </Meter>
      {host.gpus.map((gpu) => (
        <Meter key={gpu.id} label={`GPU ${gpu.id}`} part={held.gpus[gpu.id] ?? 0}>
          {`${Math.round(100 * (held.gpus[gpu.id] ?? 0))} % allocated`}
        </Meter>
      ))}
    </>
  );
}

export function HostCard({ host, children }: { host: HostState; children?: ComponentChildren }) {
  const live = host.attempts.filter((each) => each.phase !== "ended");
  return (
    <article class="card" data-host={host.host}>
      <div class="head">
        <h2>
          <a href={`/hosts?host=${host.host}`}>{host.host}</a>
        </h2>
        {host.draining && <span class="tag">shutting down</span>}
        <span class="spread" />
        <span class="muted">{live.length === 1 ? "1 run" : `${count(live.length)} runs`}</span>
      </div>
      <HostMeters host={host} />
      <div class="ellipsis host-runs">
        {live.slice(0, MOST_RUNS).map((each) => (
          <a key={each.run} href={`/run/${each.run}`}>
            {runs.value.get(each.run)?.name ?? each.run.slice(-6)}
          </a>
        ))}
        {live.length > MOST_RUNS && <span class="muted">and {live.length - MOST_RUNS} more</span>}
        {!live.length && <span class="muted">idle</span>}
      </div>
      {children}
    </article>
  );
}
