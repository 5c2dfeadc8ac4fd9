/** A form that begins with the configuration of a run: `?from=RUN`. */

import { useSignal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { api, explain } from "../bus/api";
import type { RunDetail } from "../bus/types";
import { essential } from "../parts/spec";
import { query } from "../router";
import type { Form } from "./form";

export function useDuplicate(form: Form): { asked: boolean; note: string; failed: boolean } {
  const run = query.value.get("from") ?? "";
  const note = useSignal(run ? `Asking for the configuration of ${run} …` : "");
  const failed = useSignal(false);
  useEffect(() => {
    if (!run) return;
    api<RunDetail>("scheduler", "show", { run }).then(
      (detail) => {
        form.worker.value = detail.spec.worker;
        form.profile.value = detail.spec.profile;
        // The same name for two runs would confuse; the scheduler makes one.
        form.fill({ ...essential(detail.spec), name: "" });
        note.value = `A copy of ${detail.run.name}. Change what you like.`;
      },
      (error) => {
        note.value = explain(error);
        failed.value = true;
      },
    );
  }, [run]);
  return { asked: run !== "" && !failed.value, note: note.value, failed: failed.value };
}
