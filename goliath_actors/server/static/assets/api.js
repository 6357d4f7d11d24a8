// The server's doors, and staying connected to it. What the server says about an error becomes what the reader can do.

import { eventsOf } from "./sse.js";

const TOKEN = "goliath-token";
const SILENCE = 40_000; // ms without a byte after which a connection is taken for dead; the server sends comments
const LEAVING = 1_000; // ms that the end of a stream may take after its last event
const REFUSALS = 6; // attempts, over some ten seconds
const LONGEST_PAUSE = 8_000; // ms between two attempts

/** A request that failed. `advice` says what to do; `status` is 0 when the server was not reached. */
export class ApiError extends Error {
  constructor(status, title, detail, retryAfter = null) {
    super(detail || title);
    this.status = status;
    this.title = title;
    this.retryAfter = retryAfter;
  }

  get advice() {
    const wait = this.retryAfter ? ` Try again in ${this.retryAfter} s.` : " Try again in a moment.";
    switch (this.status) {
      case 0: return "The server cannot be reached. Nothing is lost: retry when it is back.";
      case 401: return "This server wants an access token.";
      case 403: return "Your access token does not allow this.";
      case 404: return "This is no longer there. Reload the page to see what is.";
      case 409: return this.message || "The conversation is busy. Wait for the answer, or stop it.";
      case 413: return "The message is too long for this server. Send a shorter one.";
      case 429: return `Too many messages are waiting in this conversation.${wait}`;
      case 503: return `The server is at its limit.${wait}`;
      default: return this.status >= 500 ? `The server failed (${this.status}).${wait}` : this.message || `The server said ${this.status}.`;
    }
  }
}

let token = read(TOKEN);

function read(name) {
  try {
    return sessionStorage.getItem(name) ?? localStorage.getItem(name);
  } catch {
    return null; // storage can be switched off
  }
}

export function setToken(value, keep) {
  token = value;
  try {
    for (const place of [sessionStorage, localStorage]) place.removeItem(TOKEN);
    if (value) (keep ? localStorage : sessionStorage).setItem(TOKEN, value);
  } catch {
    // It lasts as long as the page then.
  }
}

export const hasToken = () => Boolean(token);

// --- is the server there? --------------------------------------------------------------------------------------------

const connection = { lost: new Set(), listeners: new Set(), wake: new Set() };

/** Call `listener(lost)` when the server is lost and when it is back. */
export function onConnection(listener) {
  connection.listeners.add(listener);
}

function report(who, lost) {
  const before = connection.lost.size > 0;
  if (lost) connection.lost.add(who);
  else connection.lost.delete(who);
  const after = connection.lost.size > 0;
  if (before !== after) for (const listener of connection.listeners) listener(after);
  if (before && !lost) wakeAll();
}

function wakeAll() {
  for (const wake of connection.wake) wake();
}

addEventListener("online", wakeAll);
document.addEventListener("visibilitychange", () => !document.hidden && wakeAll());

/** Wait before attempt number `n`, less when there are signs that the server is back. */
export function pause(n, signal) {
  const ms = Math.min(LONGEST_PAUSE, 300 * 2 ** n) * (0.75 + Math.random() / 2);
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      connection.wake.delete(end);
      signal?.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, ms);
    connection.wake.add(end);
    signal?.addEventListener("abort", end);
  });
}

// --- requests --------------------------------------------------------------------------------------------------------

let askToken = async () => false;

/** `ask()` gets a token from the reader; true when there is a new one. */
export function onSignIn(ask) {
  askToken = ask;
}

export async function request(method, path, { body, headers = {}, signal, accept = "application/json" } = {}) {
  for (;;) {
    const all = { Accept: accept, ...headers };
    if (token) all.Authorization = `Bearer ${token}`;
    if (body !== undefined) all["Content-Type"] = "application/json";
    let response;
    try {
      response = await fetch(path, { method, headers: all, body: body === undefined ? undefined : JSON.stringify(body), signal, cache: "no-store" });
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new ApiError(0, "Not connected", "The server cannot be reached.");
    }
    if (response.status === 401 && (await askToken())) continue;
    if (response.ok) return response;
    throw await problem(response);
  }
}

async function problem(response) {
  let said = {};
  try {
    said = await response.json();
  } catch {
    // A proxy's page in HTML says nothing that helps here.
  }
  const after = parseInt(response.headers.get("Retry-After") ?? "", 10);
  return new ApiError(response.status, String(said.title ?? ""), String(said.detail ?? ""), Number.isFinite(after) ? after : null);
}

export async function json(method, path, options) {
  const response = await request(method, path, options);
  return response.status === 204 ? null : response.json();
}

/** As `json`, again and again while the server cannot be reached, and a few times while it takes nothing, as it does when
 * it is being restarted. Only for requests that may be repeated. */
export async function insist(method, path, { signal, attempts = Infinity, ...options } = {}) {
  const who = {};
  try {
    for (let n = 0; ; n++) {
      try {
        return await json(method, path, { signal, ...options });
      } catch (error) {
        const passing = error instanceof ApiError && [0, 502, 503, 504].includes(error.status);
        const most = error.status === 503 ? Math.min(attempts, REFUSALS) : attempts;
        if (!passing || n + 1 >= most || signal?.aborted) throw error;
        report(who, error.status !== 503);
        await pause(n, signal);
        if (signal?.aborted) throw error;
      }
    }
  } finally {
    report(who, false);
  }
}

/** Follow a stream of events to its end, however often the connection breaks.
 *
 * `onEvent(event)` gets each event once, in order; `state.last` is where it stands, for going on later. Returns true
 * after `run-finished`, false when the server no longer knows the stream or `signal` is aborted.
 */
export async function follow(path, { onEvent, signal, state }) {
  const who = {};
  let failures = 0;
  try {
    while (!signal.aborted) {
      const attempt = new AbortController();
      const leave = () => attempt.abort();
      signal.addEventListener("abort", leave);
      let watch;
      const alive = (silence = SILENCE) => {
        clearTimeout(watch);
        watch = setTimeout(leave, silence);
      };
      let over = false;
      let open = true;
      try {
        alive();
        const headers = state.last ? { "Last-Event-ID": String(state.last) } : {};
        const response = await request("GET", path, { headers, signal: attempt.signal, accept: "text/event-stream" });
        report(who, false);
        for await (const message of eventsOf(response)) {
          if (over) continue; // read to the end, so that the connection can be used again
          alive();
          if (message === null) continue;
          failures = 0;
          const event = JSON.parse(message.data);
          const seq = event.seq ?? 0;
          // A server that repeats what came before the id it was given must not make a text appear twice.
          if (seq && seq <= state.last) continue;
          state.last = Math.max(state.last, event.through ?? seq);
          onEvent(event);
          over = event.kind === "run-finished";
          if (over) alive(LEAVING);
        }
        open = false;
        if (over) return true;
      } catch (error) {
        if (over) return true;
        if (signal.aborted) return false;
        if (error instanceof ApiError && error.status !== 0 && error.status < 500 && error.status !== 429) return false;
      } finally {
        clearTimeout(watch);
        signal.removeEventListener("abort", leave);
        if (open) attempt.abort();
      }
      report(who, true);
      await pause(failures++, signal);
    }
    return false;
  } finally {
    report(who, false);
  }
}
