/** Says that there is nothing, and what to do next. */

import type { ComponentChildren } from "preact";
import { CommandLine } from "./command";

export function Empty({ children, command }: { children: ComponentChildren; command?: string }) {
  return (
    <div class="empty">
      <div>{children}</div>
      {command && <CommandLine command={command} />}
    </div>
  );
}
