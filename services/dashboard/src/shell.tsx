/** The frame around every page: rail, connection, rates, theme, and the banner when the connection is gone. */

import { useEffect, useRef } from "preact/hooks";
import { link, lostSince, role, trouble } from "./bus/connection";
import { eventsPerSecond, silent, summaries } from "./bus/states";
import { PAGES, type PageEntry } from "./pages";
import { CommandLine } from "./parts/command";
import { ConfirmDialogue } from "./parts/confirm";
import { Empty } from "./parts/empty";
import { count } from "./parts/format";
import { match, path } from "./router";
import { switchTheme, theme } from "./theme";

function find(): { page: PageEntry; params: Record<string, string> } | null {
  for (const page of PAGES) {
    const params = match(page.path, path.value);
    if (params) return { page, params };
  }
  return null;
}

export function Shell() {
  const found = find();
  const title = found?.page.title ?? "Not found";
  useEffect(() => {
    document.title = `${title} · MOSAIC`;
  }, [title]);
  const stale = link.value === "lost" || link.value === "logged_out";
  return (
    <div class={`shell ${stale ? "stale" : ""}`}>
      <Rail current={found?.page ?? null} />
      <header class="top">
        <Status />
        <Banner />
      </header>
      <main class="main">
        {found ? (
          // A page with other parameters is another page: nothing of the last one may stay.
          <found.page.component key={path.value} params={found.params} />
        ) : (
          <div class="stack">
            <h1>Not found</h1>
            <Empty>
              There is no page at <code>{path.value}</code>. <a href="/">Go to the overview</a>.
            </Empty>
          </div>
        )}
      </main>
      <ConfirmDialogue />
    </div>
  );
}

function Rail({ current }: { current: PageEntry | null }) {
  const rail = useRef<HTMLElement>(null);
  useEffect(() => {
    // On a phone the rail is a line that scrolls: the page that is shown must not be outside of it.
    const here = rail.current?.querySelector<HTMLElement>("[aria-current]");
    if (rail.current && here) rail.current.scrollLeft = here.offsetLeft - (rail.current.clientWidth - here.offsetWidth) / 2;
  }, [current]);
  return (
    <nav class="rail" aria-label="Pages" ref={rail}>
      <a class="brand" href="/">
        <img src="/icon.svg" alt="" />
        <span>MOSAIC</span>
        <b class="visually-hidden">, overview</b>
      </a>
      {PAGES.filter((page) => page.rail).map((page) => {
        const here = page === current || page.also?.includes(current?.path ?? "");
        return (
          <a key={page.path} class="place" href={page.path} aria-current={here ? "page" : undefined}>
            {page.title}
          </a>
        );
      })}
    </nav>
  );
}

const LINK_WORDS = { connecting: "connecting", open: "live", lost: "connection lost", logged_out: "logged out" };

function Status() {
  const rate = eventsPerSecond.value;
  const all = [...summaries.value.values()];
  const missing = all.reduce((sum, each) => sum + each.missing, 0);
  const repaired = all.reduce((sum, each) => sum + each.repaired, 0);
  return (
    <>
      {role.value === "viewer" && <span class="tag">viewer: commands are not offered</span>}
      <span class={`badge link-${link.value}`} id="link" data-link={link.value}>
        {LINK_WORDS[link.value]}
      </span>
      <span class="number" title="Events that telemetry stores per second">
        {rate === null ? "–" : count(Math.round(rate))} events/s
      </span>
      <span
        class="number"
        id="losses"
        title="Lines that are known to exist and are not stored yet, and lines that were sent again and stored"
      >
        <span class={missing ? "error" : ""}>missing {count(missing)}</span>
        {" · "}repaired {count(repaired)}
      </span>
      <button class="theme" type="button" onClick={switchTheme}>
        {theme.value === "dark" ? "Light theme" : "Dark theme"}
      </button>
    </>
  );
}

function Banner() {
  if (link.value === "logged_out") {
    return (
      <div class="banner severe" role="alert">
        You are logged out. Run this and open the address that it prints: <CommandLine command="mosaic open" />
      </div>
    );
  }
  if (link.value === "lost") {
    const since = lostSince.value && new Date(lostSince.value * 1000).toLocaleTimeString();
    return (
      <div class="banner severe" role="alert">
        Connection lost at {since}. Values are from that time. Reconnecting …
      </div>
    );
  }
  const quiet = Object.keys(silent.value);
  if (quiet.length) {
    return (
      <div class="banner" role="status">
        No heartbeat from {quiet.join(", ")}: {quiet.length === 1 ? "its" : "their"} values may be out of date (mosaic status).
      </div>
    );
  }
  if (trouble.value) {
    return (
      <div class="banner" role="status">
        {trouble.value}
      </div>
    );
  }
  return null;
}
