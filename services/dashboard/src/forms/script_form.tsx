/** Script: a shell script of several phases, described by its comments, run by a worker that can. */

import { useSignal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import { api, explain } from "../bus/api";
import { hosts } from "../bus/states";
import { count } from "../parts/format";
import { askedPaths, fillTemplate, Form, pickedPaths } from "./form";
import { describe, profiles } from "./workers";
import { describedBy, Waiting, WorkerChoice, WorkerFields } from "./worker_form";

interface ShellScript {
  path: string;
  description: string;
  phases: string[];
  total_timesteps: number | null;
}

function canScript(worker: string): boolean {
  const rows = profiles.value.filter((row) => row.worker === worker);
  return rows.some((row) => Object.keys(describe(worker, row.profile)?.description?.capabilities.script_config ?? {}).length > 0);
}

export function ScriptForm() {
  const form = useMemo(() => new Form(), []);
  const able = [...new Set(profiles.value.map((row) => row.worker))].filter(canScript);
  useEffect(() => {
    if (!form.worker.peek() && able[0]) form.worker.value = able[0];
  }, [able.join(" ")]);
  const described = describedBy(form);
  const description = described?.description ?? null;
  const template = description?.capabilities.script_config ?? {};
  const chosen = useSignal("");
  useEffect(() => {
    for (const [path, text] of fillTemplate(template, {})) form.set(path, text);
  }, [description]);
  const choose = (path: string, host: string) => {
    chosen.value = path;
    for (const [key, value] of fillTemplate(template, { "{script}": path })) form.set(key, value);
    // The other hosts do not have the file.
    if (hosts.peek().size > 1) form.set("requires", requiring(host, form.text("requires")));
  };
  if (!able.length) return <p class="muted">No installed worker runs scripts. Install one that does on the page <a href="/workers">Workers</a>.</p>;
  return (
    <div class="stack">
      <WorkerChoice form={form} suits={canScript} />
      {description ? (
        <WorkerFields form={form} description={description} first={askedPaths(template)} action="Run script" picked={{ paths: pickedPaths(template), ask: "Choose a script from the list." }}>
          <ScriptList chosen={chosen.value} choose={choose} />
        </WorkerFields>
      ) : (
        <Waiting worker={form.worker.value} profile={form.profile.value} described={described} />
      )}
    </div>
  );
}

/** Tags that a host must have, with that of one host in place of any other host's. */
function requiring(host: string, tags: string): string {
  const others = tags.split(",").map((each) => each.trim()).filter((each) => each && !each.startsWith("host:"));
  return [...others, `host:${host}`].join(", ");
}

function ScriptList({ chosen, choose }: { chosen: string; choose: (path: string, host: string) => void }) {
  const names = [...hosts.value.keys()].sort();
  const picked = useSignal("");
  const host = names.includes(picked.value) ? picked.value : (names[0] ?? "");
  const folder = useSignal("");
  const found = useSignal<{ folder: string; scripts: ShellScript[] } | null>(null);
  const problem = useSignal("");
  const look = async () => {
    try {
      found.value = await api(`supervisor.${host}`, "scripts", { folder: folder.peek() });
      problem.value = "";
    } catch (error) {
      problem.value = explain(error);
    }
  };
  useEffect(() => void look(), [host]);
  return (
    <section class="card" aria-label="Scripts">
      <form
        class="row"
        onSubmit={(event) => {
          event.preventDefault();
          void look();
        }}
      >
        {names.length > 1 && (
          <label class="row">
            host
            <select value={host} onChange={(event) => (picked.value = event.currentTarget.value)}>
              {names.map((each) => (
                <option key={each}>{each}</option>
              ))}
            </select>
          </label>
        )}
        <label for="script-folder">Folder on {host}</label>
        <input
          id="script-folder"
          class="wide"
          value={folder.value}
          placeholder={found.value?.folder ?? "/home/you/scripts"}
          onInput={(event) => (folder.value = event.currentTarget.value)}
        />
        <button type="submit">List scripts</button>
      </form>
      {problem.value && (
        <p class="error" role="alert">
          {problem.value}
        </p>
      )}
      {found.value && !found.value.scripts.length && (
        <p class="muted">
          No *.sh in {found.value.folder}. Put scripts there, or name another folder. Comments describe a script: # @description, # @phases, # @total_timesteps.
        </p>
      )}
      <ul class="choices">
        {(found.value?.scripts ?? []).map((script) => (
          <li key={script.path}>
            <label class={script.path === chosen ? "chosen" : ""}>
              <input type="radio" name="script" checked={script.path === chosen} onChange={() => choose(script.path, host)} />
              <span>
                <b>{script.path.split("/").at(-1)}</b>
                <span class="muted"> {script.description || "no @description"}</span>
                <br />
                <span class="muted">
                  {script.phases.length ? `phases: ${script.phases.join(", ")}` : "no @phases"}
                  {script.total_timesteps !== null && ` · ${count(script.total_timesteps)} steps`}
                </span>
              </span>
            </label>
          </li>
        ))}
      </ul>
    </section>
  );
}
