/** The command line that an action equals, with a button that copies it. */

import { useSignal } from "@preact/signals";

export function CommandLine({ command, label = `the command ${command}` }: { command: string; label?: string }) {
  return (
    <span class="command">
      <code tabIndex={0} role="region" aria-label={label}>
        {command}
      </code>
      <Copy text={command} />
    </span>
  );
}

export function Copy({ text, children = "Copy" }: { text: string; children?: string }) {
  const said = useSignal("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      said.value = "Copied";
    } catch {
      said.value = "Not allowed"; // a browser copies only for pages of https or of this machine
    }
    window.setTimeout(() => (said.value = ""), 1500);
  };
  return (
    <button type="button" onClick={() => void copy()}>
      <span aria-live="polite">{said.value || children}</span>
    </button>
  );
}

/** The call that the page makes, for what no `mosaic` command does. TOKEN is that of the address. */
export function asCurl(service: string, command: string, args: object): string {
  const address = `${location.origin}/api/${service}/${command}`;
  return `curl -s ${address} -H "Authorization: Bearer $TOKEN" -H 'Content-Type: application/json' -d ${quote(JSON.stringify(args))}`;
}

/** A word of a shell command, quoted if it must be. */
export function quote(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}
