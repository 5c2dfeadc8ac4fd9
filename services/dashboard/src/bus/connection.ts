/** The one WebSocket of the page: credits, reconnection, and watches that are sent again with their position. */

import { signal } from "@preact/signals";

/** Something that the page follows. `ask` is called at every connection, so it names the position at that moment. */
export interface Watch {
  ask(): Record<string, unknown>;
  /** Handle a message. If it returns a promise, the gateway sends less until that is settled. */
  take(message: any, picture: Uint8Array<ArrayBuffer> | null): void | Promise<void>;
}

export type LinkState = "connecting" | "open" | "lost" | "logged_out";

export const link = signal<LinkState>("connecting");
export const lostSince = signal<number | null>(null);
export const role = signal<"owner" | "viewer" | null>(null);
/** Newest trouble that the gateway told for a watch; empty if there is none. */
export const trouble = signal("");

/** Handled messages after which credits are given back: a quarter of those that the page begins with. */
const CREDIT_BATCH = 8;
const FIRST_DELAY_MS = 200;
const LONGEST_DELAY_MS = 5000;
/** Heartbeats of services come every second, so silence means that the gateway may be gone without a word. */
const QUIET_MS = 8000;

const watches = new Map<number, Watch>();
const onStates: ((message: any) => void)[] = [];
let socket: WebSocket | null = null;
let nextId = 1;
let handled = 0;
let delay = FIRST_DELAY_MS;
let timer = 0;
let lastHeard = 0;

/** Follow something until the returned function is called. */
export function follow(watch: Watch): { again(): void; end(): void } {
  const id = nextId++;
  watches.set(id, watch);
  const send = () => say({ ...watch.ask(), id });
  send();
  return {
    again: send,
    end: () => {
      watches.delete(id);
      say({ type: "unwatch", id });
    },
  };
}

/** Call a function with every `states` message. */
export function hearStates(take: (message: any) => void): void {
  onStates.push(take);
}

function say(message: Record<string, unknown>): void {
  if (socket?.readyState === WebSocket.OPEN && link.value === "open") socket.send(JSON.stringify(message));
}

export function connect(): void {
  clearTimeout(timer);
  if (socket && socket.readyState <= WebSocket.OPEN) return;
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  const opened = new WebSocket(`${scheme}://${location.host}/ws`);
  opened.binaryType = "arraybuffer";
  socket = opened;
  handled = 0;
  lastHeard = Date.now();
  opened.onmessage = (event) => {
    lastHeard = Date.now();
    void receive(opened, event.data);
  };
  opened.onclose = () => {
    if (socket === opened) void lose();
  };
}

async function lose(): Promise<void> {
  socket = null;
  if (link.value === "open" || lostSince.value === null) lostSince.value = Date.now() / 1000;
  if (link.value !== "logged_out") link.value = "lost";
  timer = window.setTimeout(connect, delay * (0.75 + Math.random() / 2));
  delay = Math.min(delay * 2, LONGEST_DELAY_MS);
  // A refused handshake looks like a lost connection to a page; the answer to a request tells the difference.
  const status = await fetch("/icon.svg", { cache: "no-store" }).then((answer) => answer.status, () => 0);
  if (status === 401) link.value = "logged_out";
}

async function receive(from: WebSocket, data: string | ArrayBuffer): Promise<void> {
  const { message, picture } = typeof data === "string" ? { message: JSON.parse(data), picture: null } : unpack(data);
  if (message.type === "welcome") {
    greet(message);
    return;
  }
  try {
    if (message.type === "states") {
      trouble.value = "";
      for (const take of onStates) take(message);
    } else if (message.type === "error") {
      trouble.value = message.message;
    } else {
      await watches.get(message.id)?.take(message, picture);
    }
  } finally {
    // What the last connection sent costs nothing on this one.
    if (from === socket && ++handled >= CREDIT_BATCH) {
      say({ type: "credit", n: handled });
      handled = 0;
    }
  }
}

function greet(welcome: { role: "owner" | "viewer" }): void {
  role.value = welcome.role;
  link.value = "open";
  lostSince.value = null;
  delay = FIRST_DELAY_MS;
  say({ type: "watch_states" });
  for (const [id, watch] of watches) say({ ...watch.ask(), id });
}

/** A frame: four bytes with the length of the head, the head as JSON, the picture. */
function unpack(data: ArrayBuffer): { message: any; picture: Uint8Array<ArrayBuffer> } {
  const length = new DataView(data).getUint32(0);
  const head = new TextDecoder().decode(new Uint8Array(data, 4, length));
  return { message: JSON.parse(head), picture: new Uint8Array(data, 4 + length) };
}

/** Close the connection, as a network fault would. For tests, and for a gateway that has fallen silent. */
export function drop(): void {
  const old = socket;
  socket = null;
  if (old) {
    old.onmessage = old.onclose = null;
    old.close();
    void lose();
  }
}

async function checkSilence(): Promise<void> {
  if (link.value !== "open" || Date.now() - lastHeard < QUIET_MS) return;
  const before = lastHeard;
  const alive = await fetch("/healthz", { signal: AbortSignal.timeout(4000) }).then(() => true, () => false);
  if (!alive && lastHeard === before) drop();
}

export function start(): void {
  connect();
  window.setInterval(() => void checkSilence(), 2000);
  const hurry = () => {
    if (link.value !== "open" && document.visibilityState === "visible") {
      delay = FIRST_DELAY_MS;
      connect();
    }
  };
  window.addEventListener("online", hurry);
  document.addEventListener("visibilitychange", hurry);
}
