/** Light or dark: what the system says, unless the user chose; the choice is remembered. */

import { effect, signal } from "@preact/signals";

export type Theme = "light" | "dark";
const KEY = "mosaic-theme";
const system = window.matchMedia("(prefers-color-scheme: dark)");

function remembered(): Theme | null {
  const kept = localStorage.getItem(KEY);
  return kept === "light" || kept === "dark" ? kept : null;
}

const chosen = signal(remembered());
const systemTheme = signal<Theme>(system.matches ? "dark" : "light");
export const theme = signal<Theme>("light");

export function switchTheme(): void {
  chosen.value = theme.value === "dark" ? "light" : "dark";
  localStorage.setItem(KEY, chosen.value);
}

export function startTheme(): void {
  system.addEventListener("change", () => {
    systemTheme.value = system.matches ? "dark" : "light";
  });
  effect(() => {
    const next = chosen.value ?? systemTheme.value;
    document.documentElement.dataset["theme"] = next;
    theme.value = next;
  });
}
