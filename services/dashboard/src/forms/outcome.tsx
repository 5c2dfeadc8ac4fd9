/** What a form submits: whether it is right, the button, and the same as command, YAML and Python. */

import { useSignal } from "@preact/signals";
import { Copy } from "../parts/command";
import { asCommand, asPython, asYaml } from "../parts/spec";
import { navigate } from "../router";
import { problemsByField, type Form } from "./form";

const WAYS = ["command", "yaml", "python"] as const;

export function Outcome({ form, action, shown, command }: { form: Form; action: string; shown: string[]; command?: string | null }) {
  const checked = form.checked.value;
  const loose = problemsByField(checked?.problems ?? [], shown).get("") ?? [];
  const go = async () => {
    const run = await form.submit();
    if (run) navigate(`/run/${run}`);
  };
  return (
    <aside class="card outcome" aria-label="What this form submits">
      <div class="row">
        <button type="button" class="primary" id="submit" disabled={form.busy.value || checked?.ok === false} onClick={() => void go()}>
          {form.busy.value ? "Submitting …" : action}
        </button>
        <span role="status" id="verdict" data-ok={checked?.ok}>
          {checked === null ? "checking …" : checked.ok ? <>Ready: run <b>{checked.run_name}</b></> : <b class="error">{wrong(checked.problems.length)}</b>}
        </span>
      </div>
      {form.problem.value && (
        <p class="error" role="alert">
          {form.problem.value}
        </p>
      )}
      {loose.map((each) => (
        <p class="error" role="alert" key={each.field + each.message}>
          {each.field && <code>{each.field}</code>} {each.message}
        </p>
      ))}
      {form.secrets.value.length > 0 && <p class="muted">Not copied, since they are secrets: {form.secrets.value.join(", ")}</p>}
      {(checked?.ok ? checked.warnings : []).map((each) => (
        <p class="muted" key={each}>
          {each}
        </p>
      ))}
      <Ways form={form} command={command ?? null} />
    </aside>
  );
}

function wrong(problems: number): string {
  return problems === 1 ? "One thing is not right yet" : `${problems} things are not right yet`;
}

function Ways({ form, command }: { form: Form; command: string | null }) {
  const way = useSignal<(typeof WAYS)[number]>("command");
  const spec = form.spec.value;
  const text = way.value === "yaml" ? asYaml(spec) : way.value === "python" ? asPython(spec) : (command ?? asCommand(spec));
  return (
    <div class="ways">
      <div class="row">
        <span class="muted">The same as</span>
        {WAYS.map((each) => (
          <button key={each} type="button" class="small" aria-pressed={way.value === each} onClick={() => (way.value = each)}>
            {each === "yaml" ? "YAML" : each === "python" ? "Python" : "command"}
          </button>
        ))}
        <Copy text={text} />
      </div>
      <pre class="lines" tabIndex={0} role="region" aria-label={`the same as ${way.value}`} data-way={way.value}>
        {text}
      </pre>
      {way.value === "yaml" && <p class="muted">Save it as run.yaml, then: mosaic submit run.yaml</p>}
    </div>
  );
}
