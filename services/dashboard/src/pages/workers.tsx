/** Workers: their profiles, whether they are installed, how an installation goes, and what each algorithm needs. */

import "../styles/workers.css";
import { role } from "../bus/connection";
import { hosts, known } from "../bus/states";
import { describe, profiles, type AlgorithmCard, type Description, type Profile } from "../forms/workers";
import { CommandLine } from "../parts/command";
import { Empty } from "../parts/empty";
import { query, setQuery } from "../router";
import { buildLines, InstallButton, installCommand } from "../workers/install";

const STATUS_WORDS = { available: "not installed", building: "installing", installed: "installed", broken: "broken" };
/** Environments that are shown by name; the form offers all of them. */
const MOST_NAMED = 40;

export function Workers() {
  if (!known.value) return <p class="muted">Waiting for the first news …</p>;
  if (!profiles.value.length) {
    return (
      <div class="stack">
        <h1>Workers</h1>
        <Empty command="mosaic up">{hosts.value.size ? "No host has a worker." : "No host has reported yet."} Start one:</Empty>
      </div>
    );
  }
  const workers = [...new Set(profiles.value.map((row) => row.worker))];
  return (
    <div class="stack">
      <h1>Workers</h1>
      <p class="muted">
        A worker wraps one library, in a process and a virtualenv of its own. A profile is one set of versions. What is not
        installed is installed on first use, or here.
      </p>
      {workers.map((worker) => (
        <WorkerCard key={worker} worker={worker} rows={profiles.value.filter((row) => row.worker === worker)} />
      ))}
      <div class="card">
        <h2>Your own</h2>
        <p class="muted">Install your own worker from its folder:</p>
        <CommandLine command="mosaic workers install path/to/my_worker" />
      </div>
    </div>
  );
}

function WorkerCard({ worker, rows }: { worker: string; rows: Profile[] }) {
  const installed = rows.find((row) => row.installed);
  const description = installed ? describe(worker, installed.profile)?.description : null;
  const about = description?.metadata;
  const version = about?.upstream_library && `${about.upstream_library} ${about.upstream_version ?? ""}`;
  return (
    <section class="card" aria-label={worker} data-worker={worker}>
      <div class="head">
        <h2>{worker}</h2>
        {version && <span class="tag">{version}</span>}
        <span class="muted">{about?.description}</span>
        <span class="spread" />
      </div>
      <ul class="profiles">
        {rows.map((row) => (
          <ProfileRow key={row.profile} row={row} />
        ))}
      </ul>
    </section>
  );
}

function ProfileRow({ row }: { row: Profile }) {
  const open = query.value.get("open") === `${row.worker}/${row.profile}`;
  const described = row.installed ? describe(row.worker, row.profile) : null;
  const description = described?.description ?? null;
  const algorithms = description?.algorithms ?? [];
  const able = algorithms.filter((card) => card.runs).length;
  return (
    <li data-profile={`${row.worker}/${row.profile}`}>
      <div class="row">
        <h3>{row.profile}</h3>
        {row.places.map((place) => (
          <span key={place.host} class={`badge env-${place.environment.status}`} title={place.environment.detail}>
            {STATUS_WORDS[place.environment.status]}
            {hosts.value.size > 1 && ` on ${place.host}`}
          </span>
        ))}
        {algorithms.length > 0 && (
          <span class="muted number">
            {able} of {algorithms.length} algorithms run here
          </span>
        )}
        {description && description.environments.length > 0 && <span class="muted number">{description.environments.length} environments</span>}
        <span class="spread" />
        <InstallButton worker={row.worker} profile={row.profile} />
        {description && (
          <button type="button" aria-expanded={open} onClick={() => setQuery({ open: open ? null : `${row.worker}/${row.profile}` })}>
            {open ? "Less" : "Details"}
          </button>
        )}
        {description && role.value === "owner" && hasFields(description) && (
          <a class="button primary" href={startLink(row)}>
            Start a run
          </a>
        )}
      </div>
      {row.places.map((place) => place.environment.status === "broken" && <p class="error">{place.environment.detail}</p>)}
      {described?.problem && <p class="error">{described.problem}</p>}
      <BuildLog row={row} />
      {open && description && <Details row={row} description={description} />}
    </li>
  );
}

function hasFields(description: Description): boolean {
  return Object.values(description.example_config).some((value) => typeof value !== "object");
}

function startLink(row: Profile, algorithm = ""): string {
  const query = new URLSearchParams({ worker: row.worker });
  if (row.profile !== "default") query.set("profile", row.profile);
  if (algorithm) query.set("algo", algorithm);
  return `/start?${query}`;
}

function BuildLog({ row }: { row: Profile }) {
  const logs = row.places.flatMap(({ host }) => {
    const lines = buildLines.value.get(`${host}/${row.worker}/${row.profile}`);
    return lines?.length ? [{ host, lines }] : [];
  });
  return (
    <>
      {logs.map(({ host, lines }) => (
        <details key={host} class="build-log">
          <summary>Installation on {host}: {lines.at(-1)}</summary>
          <pre class="lines" tabIndex={0} role="region" aria-label={`installation of ${row.worker}/${row.profile} on ${host}`}>
            {lines.join("\n")}
          </pre>
        </details>
      ))}
    </>
  );
}

function Details({ row, description }: { row: Profile; description: Description }) {
  const { environments } = description;
  const command = `mosaic workers describe ${row.worker}${row.profile === "default" ? "" : ` --profile ${row.profile}`}`;
  return (
    <div class="stack details">
      <CommandLine command={command} />
      {description.algorithms.length > 0 && <Algorithms row={row} cards={description.algorithms} />}
      {environments.length > 0 && (
        <p class="muted">
          Environments: {environments.slice(0, MOST_NAMED).join(", ")}
          {environments.length > MOST_NAMED && ` … and ${environments.length - MOST_NAMED} more`}
        </p>
      )}
      <p class="muted">
        Install it on another host of yours with <code>{installCommand(row.worker, row.profile)}</code>
      </p>
    </div>
  );
}

function Algorithms({ row, cards }: { row: Profile; cards: AlgorithmCard[] }) {
  const sorted = [...cards].sort((a, b) => Number(b.runs) - Number(a.runs));
  return (
    <div class="algorithms" tabIndex={0} role="region" aria-label={`algorithms of ${row.worker}/${row.profile}`}>
      <table>
        <thead>
          <tr>
            <th scope="col">Algorithm</th>
            <th scope="col">Family</th>
            <th scope="col">Actions</th>
            <th scope="col">Runs here</th>
          </tr>
        </thead>
        <tbody>
          {sorted.map((card) => (
            <tr key={card.name} data-runs={card.runs}>
              <td>
                {card.runs && role.value === "owner" ? <a href={startLink(row, card.name)}>{card.name}</a> : <span class={card.runs ? "" : "muted"}>{card.name}</span>}
              </td>
              <td>{card.family}</td>
              <td>{card.actions}</td>
              <td>{card.runs ? <span>✓ {card.source}</span> : <span class="muted">{card.needs || "not in this profile"}</span>}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
