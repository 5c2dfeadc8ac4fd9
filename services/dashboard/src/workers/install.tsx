/** Install a worker's environment, and see how far it is. */

import { effect, signal } from "@preact/signals";
import { role } from "../bus/connection";
import { api } from "../bus/api";
import { builds } from "../bus/states";
import { CommandLine } from "../parts/command";
import { confirm } from "../parts/confirm";
import { Progress } from "../parts/meter";
import { profiles } from "../forms/workers";

const MOST_LINES = 500;

/** What was said of each build since the page was opened, by `host/worker/profile`; a new build begins anew. */
export const buildLines = signal<ReadonlyMap<string, readonly string[]>>(new Map());

effect(() => {
  const before = buildLines.peek();
  const after = new Map(before);
  for (const [key, build] of builds.value) {
    const lines = after.get(key) ?? [];
    const line = build.error || `${String(Math.round(build.percent)).padStart(3)} %  ${build.step}`;
    if (lines.at(-1) === line) continue;
    const began = lines.length > 0 && parseInt(lines.at(-1) as string, 10) > build.percent;
    after.set(key, [...(began ? [] : lines), line].slice(-MOST_LINES));
  }
  buildLines.value = after;
});

export function installCommand(worker: string, profile: string): string {
  return `mosaic workers install ${worker}${profile === "default" ? "" : ` --profile ${profile}`}`;
}

/** The button, or the progress once it was pressed. It installs on every host where the profile is missing. */
export function InstallButton({ worker, profile, main = false }: { worker: string; profile: string; main?: boolean }) {
  const row = profiles.value.find((each) => each.worker === worker && each.profile === profile);
  const missing = row?.places.filter((each) => each.environment.status !== "installed") ?? [];
  if (!missing.length) return null;
  const command = installCommand(worker, profile);
  if (missing.some((each) => each.environment.status === "building")) {
    return (
      <>
        {missing.map((each) => (
          <BuildState key={each.host} host={each.host} worker={worker} profile={profile} />
        ))}
      </>
    );
  }
  if (role.value !== "owner") return <CommandLine command={command} />;
  const places = missing.map((each) => each.host);
  const ask = () =>
    confirm({
      title: `Install ${worker}/${profile}`,
      text: `Builds its virtualenv on ${places.join(", ")} from pinned packages. That can take minutes and gigabytes; runs go on meanwhile.`,
      command,
      action: "Install",
      run: () => Promise.all(places.map((each) => api(`supervisor.${each}`, "install", { worker, profile }))),
    });
  return (
    <div class="row">
      <button type="button" class={main ? "primary" : ""} onClick={ask}>
        Install {worker}/{profile}
      </button>
      {missing.map((each) => (
        <BuildState key={each.host} host={each.host} worker={worker} profile={profile} />
      ))}
    </div>
  );
}

export function BuildState({ host, worker, profile }: { host: string; worker: string; profile: string }) {
  const build = builds.value.get(`${host}/${worker}/${profile}`);
  if (!build) return null;
  if (build.error) {
    return (
      <p class="error" role="alert">
        {host}: {build.error}
      </p>
    );
  }
  if (build.done) return null;
  return (
    <div class="build" role="status">
      <Progress part={build.percent / 100} label={`installing ${worker}/${profile} on ${host}`} />
      <span class="muted number">
        {host}: {Math.round(build.percent)} % · {build.step}
      </span>
    </div>
  );
}
