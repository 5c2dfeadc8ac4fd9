/** Colours of curves. A name keeps its colour in this browser; two shown names of one colour differ by their dashes. */

import { theme } from "../theme";

const COLOURS = 10;
/** Lengths of dashes and gaps, in pixels; the first is a solid line. */
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];
const KEY = "mosaic-colours";
const MOST_REMEMBERED = 500;

export interface Style {
  /** A CSS colour. */
  colour: string;
  dash: number[];
}

const remembered = new Map<string, number>(recall());

function recall(): [string, number][] {
  try {
    return JSON.parse(localStorage.getItem(KEY) ?? "[]") as [string, number][];
  } catch {
    return []; // not written by this page
  }
}

function remember(name: string, index: number): void {
  remembered.set(name, index);
  for (const oldest of remembered.keys()) if (remembered.size > MOST_REMEMBERED) remembered.delete(oldest);
  localStorage.setItem(KEY, JSON.stringify([...remembered]));
}

/** How to draw several names: each in its own colour, a new one in a free colour, dashed if its colour is taken. */
export function stylesOf(names: readonly string[]): Map<string, Style> {
  const uses = new Array<number>(COLOURS).fill(0);
  const found = new Map<string, Style>();
  const sorted = [...new Set(names)].sort();
  for (const name of [...sorted.filter((each) => remembered.has(each)), ...sorted.filter((each) => !remembered.has(each))]) {
    let index = remembered.get(name);
    if (index === undefined) {
      const first = hash(name) % COLOURS;
      const free = uses.map((_, i) => (first + i) % COLOURS).find((each) => !uses[each]);
      index = free ?? first;
      remember(name, index);
    }
    const used = uses[index] ?? 0;
    uses[index] = used + 1;
    found.set(name, { colour: `var(--curve-${index})`, dash: DASHES[used % DASHES.length] as number[] });
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
