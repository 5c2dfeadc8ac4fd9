/** Hosts: resources, runs, environments and tags of each; keep a host free, or give it back. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { api } from "../bus/api";
import { role } from "../bus/connection";
import { hosts, known, now, runs } from "../bus/states";
import type { HostState } from "../bus/types";
import { Ago, StateBadge } from "../parts/badges";
import { confirm } from "../parts/confirm";
import { Empty } from "../parts/empty";
import { span } from "../parts/format";
import { HostMeters } from "../parts/host";
import { query } from "../router";

interface HostList {
  silent_s: Record<string, number>;
  drained: Record<string, string>;
  paused: string | null;
}

/** Seconds without a report after which a host is said to be silent. */
const SILENT_S = 10;
const ASK_MS = 5000;

export function Hosts() {
  const list = useSignal<HostList | null>(null);
  const ask = async () => {
    list.value = await api<HostList>("scheduler", "hosts").catch(() => list.value);
  };
  useEffect(() => {
    void ask();
    const timer = window.setInterval(() => void ask(), ASK_MS);
    return () => clearInterval(timer);
  }, []);
  const chosen = query.value.get("host");
  const every = [...hosts.value.values()].sort((a, b) => a.host.localeCompare(b.host));
  const all = every.filter((host) => chosen === null || host.host === chosen);
  return (
    <div class="stack">
      <div class="page-head">
        <h1>Hosts</h1>
        {chosen !== null && <a href="/hosts">{every.length === 1 ? "All hosts" : `All ${every.length} hosts`}</a>}
        <span class="spread" />
        {role.value === "owner" && list.value && <PauseQueue paused={list.value.paused} done={ask} />}
      </div>
      {list.value?.paused && <p class="notice">The queue is paused ({list.value.paused}): nothing new is placed.</p>}
      {known.value && !all.length && <Empty command="mosaic up">{chosen === null ? "No host has reported. Start a stack:" : `No host ${chosen} has reported. Start a stack on it:`}</Empty>}
      {all.map((host) => (
        <Host key={host.host} host={host} list={list.value} done={ask} />
      ))}
    </div>
  );
}

function PauseQueue({ paused, done }: { paused: string | null; done: () => Promise<void> }) {
  const ask = () =>
    confirm({
      title: paused === null ? "Pause the queue?" : "Resume the queue?",
      text: paused === null ? "Nothing more is placed. Running runs continue." : "Waiting runs are placed again.",
      command: paused === null ? "mosaic queue pause" : "mosaic queue resume",
      action: paused === null ? "Pause queue" : "Resume queue",
      run: async () => {
        await api("scheduler", "pause_queue", { paused: paused === null, reason: "from the dashboard" });
        await done();
      },
    });
  return (
    <button type="button" onClick={ask}>
      {paused === null ? "Pause queue" : "Resume queue"}
    </button>
  );
}

function Host({ host, list, done }: { host: HostState; list: HostList | null; done: () => Promise<void> }) {
  const drained = list?.drained[host.host];
  const silent = list?.silent_s[host.host] ?? 0;
  const drain = () =>
    confirm({
      title: drained === undefined ? `Place nothing more on ${host.host}?` : `Place runs on ${host.host} again?`,
      text: "Its running runs continue.",
      command: `mosaic drain ${host.host}${drained === undefined ? "" : " --undo"}`,
      action: drained === undefined ? "Drain host" : "Undo",
      run: async () => {
        await api("scheduler", "drain", { host: host.host, drained: drained === undefined, reason: "from the dashboard" });
        await done();
      },
    });
  return (
    <section class="card" aria-label={host.host} data-host={host.host}>
      <div class="head">
        <h2>{host.host}</h2>
        {drained !== undefined && <span class="tag">drained: {drained}</span>}
        {host.draining && <span class="tag">shutting down</span>}
        {silent > SILENT_S && <span class="error">silent for {span(silent)}</span>}
        <span class="spread" />
        {role.value === "owner" && (
          <button type="button" onClick={drain}>
            {drained === undefined ? "Drain …" : "Undo drain …"}
          </button>
        )}
      </div>
      <div class="grid host-grid">
        <div>
          <HostMeters host={host} />
          <dl class="facts host-facts">
            <dt>Offers</dt>
            <dd>
              {host.total.cpus} CPUs, {(host.total.memory_mb / 1024).toFixed(1)} GB, {host.gpus.length} GPUs
            </dd>
            <dt>Tags</dt>
            <dd>{host.tags.join(", ") || "none"}</dd>
          </dl>
        </div>
        <Attempts host={host} />
        <Environments host={host} />
      </div>
    </section>
  );
}

function Attempts({ host }: { host: HostState }) {
  const live = host.attempts.filter((each) => each.phase !== "ended");
  if (!live.length) return <p class="muted">No run is on this host.</p>;
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={`Runs on ${host.host}`}>
      <table>
        <thead>
          <tr>
            <th scope="col">Run</th>
            <th scope="col">Phase</th>
            <th scope="col">CPU</th>
            <th scope="col">RAM</th>
            <th scope="col">Since</th>
          </tr>
        </thead>
        <tbody>
          {live.map((each) => (
            <tr key={each.run}>
              <td>
                <a href={`/run/${each.run}`}>{runs.value.get(each.run)?.name ?? each.run}</a>
              </td>
              <td>
                <StateBadge state={each.phase} title={each.warnings.join("; ")} />
              </td>
              <td class="number">{Math.round(each.usage.cpu_percent)} %</td>
              <td class="number">{Math.round(each.usage.rss_mb)} MB</td>
              <td>{each.started_at && now.value ? <Ago at={each.started_at} /> : "–"}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Environments({ host }: { host: HostState }) {
  const installed = host.environments.filter((each) => each.status !== "available");
  return (
    <div>
      <h3>Environments</h3>
      <ul class="plain-list environments">
        {installed.map((each) => (
          <li key={`${each.worker}/${each.profile}`}>
            {each.worker}/{each.profile} <span class={each.status === "broken" ? "error" : "muted"}>{each.status}</span>
            {each.detail && <div class="muted">{each.detail}</div>}
          </li>
        ))}
        {!installed.length && <li class="muted">None is installed; the first run of a worker installs its own.</li>}
      </ul>
    </div>
  );
}
