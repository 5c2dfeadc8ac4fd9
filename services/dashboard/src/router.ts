/** Addresses: the path chooses the page, the query holds the state of its view. */

import { computed, signal } from "@preact/signals";

const address = signal(location.pathname + location.search);

export const path = computed(() => address.value.split("?")[0] as string);
export const query = computed(() => new URLSearchParams(address.value.split("?")[1] ?? ""));

export function navigate(to: string, { replace = false } = {}): void {
  if (replace) history.replaceState(null, "", to);
  else history.pushState(null, "", to);
  address.value = location.pathname + location.search;
  if (!replace) window.scrollTo(0, 0);
}

/** Change parts of the query; `null` or an empty text removes a key. A view that is changed often replaces the address. */
export function setQuery(changes: Record<string, string | null>, { replace = true } = {}): void {
  const next = new URLSearchParams(query.value);
  for (const [key, value] of Object.entries(changes)) {
    if (value === null || value === "") next.delete(key);
    else next.set(key, value);
  }
  const text = next.toString();
  navigate(text ? `${path.value}?${text}` : path.value, { replace });
}

/** Match a path such as `/run/01M7` against a pattern such as `/run/:run`; returns the named parts. */
export function match(pattern: string, given: string): Record<string, string> | null {
  const wanted = pattern.split("/");
  const parts = given.replace(/(.)\/$/, "$1").split("/");
  if (wanted.length !== parts.length) return null;
  const found: Record<string, string> = {};
  for (const [index, piece] of wanted.entries()) {
    const part = parts[index] as string;
    if (piece.startsWith(":")) {
      try {
        found[piece.slice(1)] = decodeURIComponent(part);
      } catch {
        return null;
      }
    } else if (piece !== part) return null;
  }
  return found;
}

/** Addresses that the gateway answers itself. */
const NOT_PAGES = ["/files/", "/frames/", "/api/", "/reports/"];

/** Make plain links change the page without loading it again. */
export function startRouter(): void {
  window.addEventListener("popstate", () => {
    address.value = location.pathname + location.search;
  });
  document.addEventListener("click", (event) => {
    const anchor = (event.target as Element | null)?.closest?.("a");
    if (!anchor || event.defaultPrevented || event.button !== 0) return;
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const url = new URL(anchor.href, location.href);
    if (url.origin !== location.origin || anchor.target || anchor.hasAttribute("download")) return;
    if (url.hash || NOT_PAGES.some((prefix) => url.pathname.startsWith(prefix))) return;
    event.preventDefault();
    navigate(url.pathname + url.search);
  });
}
