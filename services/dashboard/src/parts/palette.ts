/** Colours of curves. A name keeps its colour on every page and in every session, as far as ten colours go. */

import { theme } from "../theme";

const COLOURS = 10;

/** The custom property of a colour, for CSS. */
export function colourVariable(index: number): string {
  return `var(--curve-${index % COLOURS})`;
}

/** The colours of several names: each by its hash, or the next free one, so that no two of up to ten are equal. */
export function colourIndexes(names: readonly string[]): Map<string, number> {
  const taken = new Set<number>();
  const found = new Map<string, number>();
  for (const name of [...names].sort()) {
    let index = hash(name) % COLOURS;
    for (let tried = 0; taken.has(index) && tried < COLOURS; tried++) index = (index + 1) % COLOURS;
    taken.add(index);
    found.set(name, index);
  }
  return found;
}

/** With this start, `episode_return` has the first colour. */
const HASH_START = 122;

function hash(text: string): number {
  let value = HASH_START;
  for (let i = 0; i < text.length; i++) value = Math.imul(value ^ text.charCodeAt(i), 16777619);
  return value >>> 8; // its low bits are poorly mixed
}

/** Resolve a CSS colour to one that a canvas understands, in the present theme. */
export function resolveColour(css: string): string {
  void theme.value; // who draws with it draws again when the theme changes
  const probe = document.createElement("span");
  probe.style.color = css;
  document.body.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}
