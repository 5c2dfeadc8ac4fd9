/** A question before something happens, with the command that it equals. Problems are shown in the dialogue. */

import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { explain } from "../bus/api";
import { CommandLine } from "./command";

interface Question {
  title: string;
  text: string;
  command: string;
  /** The word on the button, such as "Cancel run". */
  action: string;
  danger?: boolean;
  run(): Promise<unknown>;
}

const open = signal<Question | null>(null);
const busy = signal(false);
const problem = signal("");

/** Ask; the action runs only if the user agrees. `<ConfirmDialogue />` must be on the page: the shell has it. */
export function confirm(question: Question): void {
  problem.value = "";
  busy.value = false;
  open.value = question;
}

export function ConfirmDialogue() {
  const dialogue = useRef<HTMLDialogElement>(null);
  const question = open.value;
  useEffect(() => {
    if (question && !dialogue.current?.open) dialogue.current?.showModal();
  }, [question]);
  if (!question) return null;
  const close = () => (open.value = null);
  const go = async () => {
    busy.value = true;
    try {
      await question.run();
      close();
    } catch (error) {
      problem.value = explain(error);
    }
    busy.value = false;
  };
  return (
    <dialog ref={dialogue} onClose={close} aria-labelledby="confirm-title">
      <div class="stack">
        <h2 id="confirm-title">{question.title}</h2>
        <p>{question.text}</p>
        <CommandLine command={question.command} />
        {problem.value && (
          <p class="error" role="alert">
            {problem.value}
          </p>
        )}
        <div class="row">
          <button
            type="button"
            class={question.danger ? "danger" : "primary"}
            disabled={busy.value}
            onClick={() => void go()}
          >
            {busy.value ? "Working …" : question.action}
          </button>
          <button type="button" onClick={close}>
            Go back
          </button>
        </div>
      </div>
    </dialog>
  );
}
