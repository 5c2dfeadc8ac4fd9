/** The configuration of a run, and the ways to submit it again. */

import type { RunDetail } from "../../bus/types";
import { CommandLine } from "../../parts/command";
import { asCommand, asYaml, hasSecrets, MASKED } from "../../parts/spec";

export function Config({ detail }: { detail: RunDetail | null }) {
  if (!detail) return <p class="muted">Asking the scheduler …</p>;
  const entries = Object.entries(detail.spec.config);
  return (
    <div class="stack">
      <CommandLine command={asCommand(detail.spec)} label="the command that submits this run" />
      {hasSecrets(detail.spec) && (
        <p class="muted" id="secrets">
          <b>{MASKED}</b> stands for a secret that the page does not get to see. Put yours in its place before you submit this; <code>mosaic rerun {detail.run.name}</code> needs none.
        </p>
      )}
      <div class="grid config-grid">
        <div>
          <h3>Config</h3>
          {!entries.length && <p class="muted">All values are defaults.</p>}
          <dl class="facts">
            {entries.map(([key, value]) => (
              <Fact key={key} name={key} value={value} />
            ))}
          </dl>
        </div>
        <div>
          <h3>As a file</h3>
          <pre class="lines" tabIndex={0} role="region" aria-label="YAML of the run">
            {asYaml(detail.spec)}
          </pre>
        </div>
      </div>
    </div>
  );
}

function Fact({ name, value }: { name: string; value: unknown }) {
  return (
    <>
      <dt>{name}</dt>
      <dd>
        <code>{typeof value === "string" ? value : JSON.stringify(value)}</code>
      </dd>
    </>
  );
}
