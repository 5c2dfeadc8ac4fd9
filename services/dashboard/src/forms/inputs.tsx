/** Inputs of a form: label, value or greyed default, help, and what the scheduler says about it. */

import { useId } from "preact/hooks";
import type { Problem } from "../bus/api";
import { shortDefault, type Field } from "./fields";
import type { Form } from "./form";

export interface InputProps {
  form: Form;
  field: Field;
  problems?: Problem[] | undefined;
  /** Help is always shown, not only while the field is in use. */
  open?: boolean;
  /** Names to choose from while typing. */
  suggestions?: readonly string[];
}

export function FieldInput({ form, field, problems = [], open = false, suggestions = [] }: InputProps) {
  const id = useId();
  const helpId = `${id}-help`;
  const problemId = `${id}-problem`;
  const about = [field.help && helpId, problems.length && problemId].filter(Boolean).join(" ") || undefined;
  return (
    <div class={`field ${problems.length ? "wrong" : ""} ${open ? "open" : ""}`} data-field={field.path}>
      <label for={id}>{field.label}</label>
      <Control form={form} field={field} id={id} about={about} wrong={problems.length > 0} suggestions={suggestions} />
      {field.help && (
        <span class="help" id={helpId}>
          {field.help}
        </span>
      )}
      {problems.length > 0 && (
        <span class="error" id={problemId} role="alert">
          {problems.map((each) => each.message).join("; ")}
        </span>
      )}
    </div>
  );
}

interface ControlProps {
  form: Form;
  field: Field;
  id: string;
  about: string | undefined;
  wrong: boolean;
  suggestions: readonly string[];
}

function Control({ form, field, id, about, wrong, suggestions }: ControlProps) {
  const text = form.text(field.path);
  const common = { id, "aria-describedby": about, "aria-invalid": wrong || undefined, name: field.path };
  const set = (next: string) => form.set(field.path, next);
  const choices = field.types.length === 1 && field.types[0] === "boolean" ? ["true", "false"] : field.choices;
  if (choices.length) {
    const fallback = `default: ${shortDefault(field.default)}`;
    // A value that came with a run, or with a newer worker, stays even if it is no longer offered.
    const strange = text && !choices.includes(text) ? [text] : [];
    return (
      <select {...common} class={text ? "" : "unset"} value={text} onChange={(event) => set(event.currentTarget.value)}>
        <option value="">{fallback}</option>
        {[...strange, ...choices].map((each) => (
          <option key={each} value={each}>
            {each}
          </option>
        ))}
      </select>
    );
  }
  const numeric = field.types.some((type) => type === "number" || type === "integer") && !field.types.includes("string");
  return (
    <>
      <input
        {...common}
        type="text"
        inputMode={numeric ? "decimal" : "text"}
        autoComplete="off"
        spellcheck={false}
        value={text}
        placeholder={shortDefault(field.default)}
        list={suggestions.length ? `${id}-list` : undefined}
        onInput={(event) => set(event.currentTarget.value)}
      />
      {suggestions.length > 0 && (
        <datalist id={`${id}-list`}>
          {suggestions.map((each) => (
            <option key={each} value={each} />
          ))}
        </datalist>
      )}
    </>
  );
}

/** Many fields, folded; a filter finds one among a hundred. */
export function FieldGroup(props: {
  title: string;
  form: Form;
  fields: Field[];
  problems: Map<string, Problem[]>;
  suggestions?: (field: Field) => readonly string[];
}) {
  const { title, form, fields, problems, suggestions } = props;
  if (!fields.length) return null;
  const given = fields.filter((each) => form.text(each.path)).length;
  const wrong = fields.some((each) => problems.has(each.path));
  return (
    <details class="field-group" open={wrong || undefined}>
      <summary>
        {title} <span class="muted">({given ? `${given} of ${fields.length} given` : `${fields.length}, all default`})</span>
      </summary>
      <div class="fields">
        {fields.map((field) => (
          <FieldInput
            key={field.path}
            form={form}
            field={field}
            problems={problems.get(field.path)}
            suggestions={suggestions?.(field) ?? []}
          />
        ))}
      </div>
    </details>
  );
}
