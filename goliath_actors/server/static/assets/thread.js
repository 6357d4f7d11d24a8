// One conversation: its history, the runs that go on in it, and what can be done with them.

import { ApiError, follow, insist, json, pause } from "./api.js";
import { button, h, nextFrame } from "./dom.js";
import { Turn } from "./turn.js";

const PAGE = 60; // entries of the history that are loaded at once
const NEAR = 60; // pixels from the end within which the page follows what is written
const POLL = 4_000; // ms between two looks at what other devices did here
const SETTLING = 5_000; // ms
const AWAY = 20_000; // ms after which a hidden page lets its connection go: browsers allow six for one server

export class Thread {
  /** `ui`: the page's `{scroller, list, latest, announce, changed(), toast(text), agentOf(name)}`. */
  constructor(ui, id, agent) {
    this.ui = ui;
    this.id = id;
    this.agent = agent;
    this.path = `v1/conversations/${encodeURIComponent(id)}`;
    this.turns = [];
    this.runs = new Map(); // run id → its turn, of every run that was seen here
    this.queue = []; // turns whose runs are to be followed, oldest first
    this.following = null;
    this.closed = new AbortController();
    this.older = null; // where the history goes on upwards
    this.anchor = null;
    this.cut = []; // entries at the top whose ask is on the page above
    this.stick = true;
    this.version = 0; // when the conversation changed last, as far as this page knows
    this.ended = 0; // when the last run that was followed here was over
    this.waiting = [];
    this.context = {
      changed: () => this._changed(),
      announce: ui.announce,
      isAgent: (name) => !name || name === this.agent,
      confirm: (turn, callId, approve, reason) => this.confirm(turn, callId, approve, reason),
      answer: (callId, value) => this.answer(callId, value),
      retry: (turn) => this.send(turn.ask),
      regenerate: () => this.regenerate(),
      canRegenerate: () => this.steerable,
    };
    this.head = h("div", { class: "thread-head" });
    ui.list.replaceChildren(this.head);
    const options = { signal: this.closed.signal };
    ui.scroller.addEventListener("scroll", () => this._scrolled(), { ...options, passive: true });
    this.size = new ResizeObserver(() => this._settle());
    this.size.observe(ui.list);
    document.addEventListener("visibilitychange", () => this._visibility(), options);
    this.poll = setInterval(() => !document.hidden && this.sync().catch(() => {}), POLL);
  }

  /** An agent with native tool calling can be steered, and can answer again. */
  get steerable() {
    return this.ui.agentOf(this.agent)?.can?.steer ?? false;
  }

  get busy() {
    return this.queue.length > 0;
  }

  get empty() {
    return this.turns.length === 0;
  }

  /** The question that is open, if any: its first control. */
  get openQuestion() {
    return this.ui.list.querySelector(".card-ask[role=group]");
  }

  url(rest = "", query = {}) {
    const all = new URLSearchParams({ ...(this.agent ? { agent: this.agent } : {}), ...query }).toString();
    return `${this.path}${rest}${all ? `?${all}` : ""}`;
  }

  close() {
    this.closed.abort();
    clearInterval(this.poll);
    clearTimeout(this.away);
    this.size.disconnect();
  }

  // --- loading -------------------------------------------------------------------------------------------------------

  async open() {
    const { signal } = this.closed;
    const status = await this._status();
    if (signal.aborted) return;
    if (status) {
      const begun = await this._begun(status);
      const page = await insist("GET", this.url("/history", { limit: PAGE }), { signal });
      if (signal.aborted) return;
      this._page(page, begun);
      this._unanswered(status.unanswered ?? []);
      this._answersAgain(status.runs ?? []);
      this.version = status.last_at;
      await this._take(status);
    }
    this.loaded = true;
    this._top();
    this.toEnd();
    this.ui.changed();
  }

  async _status() {
    try {
      return await insist("GET", this.url(), { signal: this.closed.signal });
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) return null;
      throw error;
    }
  }

  /** When the run that goes on began, so that what it has stored already is not shown twice: it comes as events. */
  async _begun(status) {
    const run = (status.runs ?? []).find((one) => one.state !== "queued");
    if (!run) return Infinity;
    const stop = new AbortController();
    const end = () => stop.abort();
    this.closed.signal.addEventListener("abort", end);
    let at = Infinity;
    await follow(this.url(`/runs/${encodeURIComponent(run.run_id)}/events`), {
      signal: stop.signal, state: { last: 0 },
      onEvent: (event) => {
        if (event.kind === "run-started") at = event.at;
        if (event.kind !== "run-queued" && event.seq) stop.abort();
      },
    });
    this.closed.signal.removeEventListener("abort", end);
    return at;
  }

  /** Show the last asks that got no answer, and why: the history may not hold them. */
  _unanswered(rows) {
    for (const row of rows) {
      // What is further up is shown, if at all, as the history has it.
      if (this.older !== null && row.at < (this.turns[0]?.at ?? 0)) continue;
      const known = this.turns.findLast((turn) => turn.ask?.slice(0, row.ask.length) === row.ask && turn.at >= row.at - 2);
      if (known && !known.unanswered) continue;
      let turn = known;
      if (known) known.parts.replaceChildren();
      else {
        turn = new Turn(this.context, { ask: row.ask, at: row.at });
        const after = this.turns.findIndex((one) => one.at > row.at);
        const at = after < 0 ? this.turns.length : after;
        if (after < 0) this.ui.list.append(turn.el);
        else this.turns[after].el.before(turn.el);
        this.turns.splice(at, 0, turn);
      }
      turn.unanswered = false;
      turn.runId = row.run_id;
      if (row.reason) turn.take({ kind: "escalate", reason: row.reason });
      turn.finish({ ...row, reason: row.abort?.cause ?? row.error?.type ?? row.reason });
    }
    this._last();
  }

  /** A run that answers anew stands in the place of the last answer. */
  _answersAgain(runs) {
    const run = runs.find((one) => one.kind === "regenerate");
    const old = this.turns.at(-1);
    if (!run || !old) return;
    run.ask = old.ask;
    old.el.remove();
    this.turns.pop();
  }

  /** Put a page of the history on top. What was stored since `begun` belongs to a run whose events are shown. */
  _page(page, begun = Infinity) {
    this.older = page.next ?? null;
    this.anchor ??= page.anchor;
    const entries = page.entries.filter((entry) => entry.at < begun).concat(this.cut);
    if (this.cut.length) this.turns.shift()?.el.remove();
    this.cut = [];
    const turns = [];
    let rest = [];
    const close = () => {
      if (turns.length && rest.length) turns.at(-1).restore(rest);
      else if (turns.length) turns.at(-1).restore([]);
      rest = [];
    };
    for (const entry of entries) {
      if (entry.role === "user") {
        if (turns.length === 0 && rest.length) this._orphans(turns, rest);
        close();
        turns.push(new Turn(this.context, { ask: entry.text, at: entry.at }));
      } else rest.push(entry);
    }
    if (turns.length === 0 && rest.length) this._orphans(turns, rest);
    else close();
    if (this.older === null) this.cut = [];
    this.head.after(...turns.map((turn) => turn.el));
    this.turns.unshift(...turns);
    this._last();
  }

  /** Entries whose ask is further up: they are shown, and put together with it once it is loaded. */
  _orphans(turns, rest) {
    const turn = new Turn(this.context, {});
    turn.restore(rest);
    turns.push(turn);
    this.cut = rest.splice(0);
  }

  async loadOlder() {
    if (this.older === null || this.loading) return;
    this.loading = true;
    this._top();
    const { scroller } = this.ui;
    try {
      const page = await insist("GET", this.url("/history", { limit: PAGE, before: this.older, anchor: this.anchor }), { signal: this.closed.signal });
      const first = this.turns[this.cut.length ? 1 : 0]?.el;
      const before = first?.getBoundingClientRect().top ?? 0;
      this._page(page);
      this._top();
      // What is being read stays where it is.
      if (first) scroller.scrollTop += first.getBoundingClientRect().top - before;
    } catch (error) {
      if (!this.closed.signal.aborted) this.ui.toast(error.advice ?? "Earlier messages could not be loaded.");
    } finally {
      this.loading = false;
      this._top();
    }
  }

  _top() {
    this.head.replaceChildren(
      ...(this.older === null ? [] : [button({
        text: this.loading ? "Loading…" : "Earlier messages", label: "Earlier messages", kind: "quiet small",
        onclick: () => this.loadOlder(),
      })]));
  }

  // --- staying up to date --------------------------------------------------------------------------------------------

  /** Look what happens here: runs that were begun elsewhere, and what they left. */
  async sync(strange = false) {
    if (this.sending || !this.loaded || this.syncing) return;
    this.syncing = true;
    try {
      const status = await json("GET", this.url(), { signal: this.closed.signal });
      if (this.sending || this.closed.signal.aborted) return;
      await this._take(status, strange);
    } catch (error) {
      if (!(error instanceof ApiError && error.status === 404)) throw error;
    } finally {
      this.syncing = false;
    }
  }

  async _take(status, strange = false) {
    const runs = status.runs ?? (status.run_id ? [{ run_id: status.run_id }] : []);
    const fresh = runs.filter((run) => !this.runs.has(run.run_id));
    for (const run of fresh) {
      if (run.kind === "resume" && this.turns.length) this._goOn(this.turns.at(-1), run.run_id);
      else this._attach(this._turn({ ask: run.ask ?? null, runId: run.run_id }));
    }
    for (const ask of status.confirmations ?? []) this.runs.get(ask.run_id)?.approval(ask);
    this.waiting = status.waiting_calls ?? [];
    if (this.waiting.length && runs.length === 0) {
      const turn = this.turns.at(-1) ?? this._turn({});
      for (const call of this.waiting) turn.wait(call);
    }
    const changed = status.last_at !== this.version;
    this.version = status.last_at;
    if (!(changed || strange) || fresh.length > 0 || this.busy || !this.loaded) return;
    const page = await json("GET", this.url("/history", { limit: PAGE }), { signal: this.closed.signal });
    if (this.busy || this.sending || this.closed.signal.aborted) return;
    // A run of this page is on record a moment after its last event: that alone is no news.
    const own = Date.now() - this.ended < SETTLING && !strange;
    if (!own || !this._shows(page)) this._renew(page, status.unanswered ?? []);
  }

  /** Whether every ask at the end of a history is shown here. */
  _shows(page) {
    const shown = [...this.ui.list.querySelectorAll(".bubble")].slice(-20).map((el) => el.textContent);
    for (const entry of page.entries.filter((one) => one.role === "user").slice(-8).reverse()) {
      const at = shown.lastIndexOf(entry.text);
      if (at < 0) return false;
      shown.splice(at, 1);
    }
    return true;
  }

  /** Something changed that this page did not see happen: show it anew. */
  _renew(page, unanswered) {
    const { stick } = this;
    for (const turn of this.turns) turn.el.remove();
    this.turns = [];
    this.cut = [];
    this.anchor = null;
    this._page(page);
    this._unanswered(unanswered);
    const last = this.turns.at(-1);
    if (last) for (const call of this.waiting) last.wait(call);
    this._top();
    if (stick) this.toEnd();
    this.ui.changed();
  }

  _turn(options) {
    const turn = new Turn(this.context, options);
    this.turns.push(turn);
    this.ui.list.append(turn.el);
    if (options.runId) this.runs.set(options.runId, turn);
    this._last();
    this._changed();
    return turn;
  }

  _last() {
    const last = this.turns.at(-1);
    for (const turn of this.ui.list.querySelectorAll(".turn.last")) if (turn !== last?.el) turn.classList.remove("last");
    last?.el.classList.add("last");
  }

  _attach(turn) {
    this.queue.push(turn);
    this.runs.set(turn.runId, turn);
    turn.show(this.queue.length > 1 ? "Waiting for its turn" : "Thinking");
    this.ui.changed();
    if (this.queue.length === 1) this._follow();
  }

  /** A later run takes up what an earlier one left waiting: it goes on in the same place. */
  _goOn(turn, runId) {
    turn.setRun(runId);
    this._attach(turn);
  }

  async _follow() {
    while (this.queue.length && !this.closed.signal.aborted) {
      const turn = this.queue[0];
      this.following = turn;
      await this._followOne(turn);
      if (this.closed.signal.aborted) return;
      this.queue.shift();
      this.following = null;
      this.ended = Date.now();
      this.ui.changed();
      this.ui.finished(this, turn.runId);
      // The run may have been taken over by another, or others may wait: the server knows.
      if (!this.queue.length) await this.sync().catch(() => {});
    }
  }

  async _followOne(turn) {
    const path = this.url(`/runs/${encodeURIComponent(turn.runId)}/events`);
    const state = (turn.place ??= { last: 0 });
    for (;;) {
      await this._seen();
      if (this.closed.signal.aborted) return;
      const leave = (this.leave = new AbortController());
      const end = () => leave.abort();
      this.closed.signal.addEventListener("abort", end);
      const over = await follow(path, { signal: leave.signal, state, onEvent: (event) => this._event(turn, event) });
      this.closed.signal.removeEventListener("abort", end);
      if (this.closed.signal.aborted) return;
      if (over && turn.moved) {
        turn.moved = false;
        return this._followOne(turn);
      }
      if (over) return;
      if (leave.signal.aborted) continue; // hidden for a while: go on when it is seen again
      return this._lost(turn);
    }
  }

  _event(turn, event) {
    // After a restart an ask that had not begun is asked again, under another id: it stays the same turn.
    if (event.kind === "run-finished" && event.followed_by && event.abort?.reason === "restart") {
      this.runs.set(event.followed_by, turn);
      turn.setRun(event.followed_by);
      turn.moved = true;
      turn.show("Waiting for its turn");
      return;
    }
    turn.take(event);
  }

  /** There are no events to be had of a run: another process has it, or only its end is on record. */
  async _lost(turn) {
    const { signal } = this.closed;
    let run = null;
    for (let n = 0; run === null; n++) {
      try {
        run = await insist("GET", this.url(`/runs/${encodeURIComponent(turn.runId)}`), { signal });
        if (run.state !== "done") return this._followOne(turn);
      } catch (error) {
        if (signal.aborted) return;
        if (error.status !== 409) break;
        turn.show("Working");
        await pause(Math.min(n, 3), signal);
      }
    }
    if (run === null) turn.finish({ status: "lost" });
    else {
      if (run.result?.text) turn.take({ kind: "answer", text: run.result.text });
      turn.finish({ ...run, reason: run.abort?.cause ?? run.error?.type ?? run.result?.reason });
    }
  }

  _seen() {
    if (!this.hidden) return Promise.resolve();
    return new Promise((resolve) => {
      this.shown = resolve;
      this.closed.signal.addEventListener("abort", resolve, { once: true });
    });
  }

  _visibility() {
    clearTimeout(this.away);
    if (document.hidden) {
      this.away = setTimeout(() => {
        this.hidden = true;
        this.leave?.abort();
      }, AWAY);
    } else {
      this.hidden = false;
      this.shown?.();
      this.sync().catch(() => {});
    }
  }

  // --- doing ---------------------------------------------------------------------------------------------------------

  /** Send an ask, or hand it to what runs. The text is never lost: what did not arrive can be sent again. */
  async send(text) {
    this.stick = true;
    if (this.busy && this.steerable && this.following && this.queue.length === 1) return this._steer(text);
    const turn = this._turn({ ask: text, at: Date.now() / 1000 });
    turn.show("Sending");
    this.toEnd();
    await this._deliver(turn, crypto.getRandomValues(new Uint32Array(4)).join("-"));
  }

  async _deliver(turn, key) {
    this.sending = true;
    this.stopping = false;
    this.ui.changed();
    try {
      const run = await insist("POST", this.url("/runs"), {
        body: { ask: turn.ask, wait: false, detach: true, when_busy: "queue" },
        headers: { "Idempotency-Key": key }, // sent twice, it still runs once
        signal: this.closed.signal, attempts: 8,
      });
      turn.setRun(run.run_id);
      for (const other of this.turns) if (other !== turn && !other.busy) other.overtaken();
      this.waiting = [];
      this._attach(turn);
      if (this.stopping) this.stop();
      this.ui.sent(this, turn);
    } catch (error) {
      if (this.closed.signal.aborted) return;
      this.ui.unsent();
      turn.fail(error, () => this._deliver(turn, key));
    } finally {
      this.sending = false;
      this.ui.changed();
    }
  }

  async _steer(text) {
    const turn = this.following;
    const steer = turn.steered(text, true);
    this.toEnd();
    try {
      await json("POST", this.url("/steer"), { body: { text }, signal: this.closed.signal });
    } catch (error) {
      if (this.closed.signal.aborted) return;
      steer.el.remove();
      turn.steers = turn.steers.filter((one) => one !== steer);
      this.ui.toast(error.advice ?? "The message did not arrive.");
      this.ui.restore(text);
    }
  }

  async stop() {
    // What is on its way is stopped when it has arrived.
    this.stopping = this.sending;
    const runs = this.queue.map((turn) => turn.runId);
    const [first, ...rest] = runs;
    this.following?.show("Stopping");
    try {
      // The last first: else the next in the queue would begin.
      for (const run of [...rest.reverse(), first]) {
        if (run) await json("POST", this.url(`/runs/${encodeURIComponent(run)}/abort`), { body: { reason: "stopped by the reader" }, signal: this.closed.signal });
      }
    } catch (error) {
      if (!this.closed.signal.aborted) this.ui.toast(error.status === 0 ? "The server cannot be reached, so nothing was stopped." : error.advice);
    }
  }

  async regenerate() {
    if (this.busy) return;
    this.sending = true;
    const old = this.turns.at(-1);
    try {
      const run = await json("POST", this.url("/regenerate"), { body: { wait: false, detach: true }, signal: this.closed.signal });
      const turn = this._turn({ ask: old.ask, at: null, runId: run.run_id });
      old.el.remove();
      this.turns = this.turns.filter((one) => one !== old);
      this._attach(turn);
      this.ui.begun(this, run.run_id);
      this.toEnd();
    } catch (error) {
      if (!this.closed.signal.aborted) this.ui.toast(error.advice ?? "This could not be answered again.");
    } finally {
      this.sending = false;
      this.ui.changed();
    }
  }

  confirm(turn, callId, approve, reason) {
    return json("POST", this.url(`/runs/${encodeURIComponent(turn.runId)}/confirmations/${encodeURIComponent(callId)}`), {
      body: reason ? { approve, reason } : { approve }, signal: this.closed.signal,
    });
  }

  async answer(callId, value) {
    const run = await json("POST", this.url("/resume"), { body: { answers: { [callId]: value }, wait: false, detach: true }, signal: this.closed.signal });
    this.waiting = this.waiting.filter((call) => call.call_id !== callId);
    if (!this.runs.has(run.run_id)) {
      const asked = this.turns.findLast((turn) => turn.cards.has(callId));
      if (asked) this._goOn(asked, run.run_id);
      else this._attach(this._turn({ runId: run.run_id }));
    }
    this.ui.begun(this, run.run_id);
  }

  // --- scrolling -----------------------------------------------------------------------------------------------------

  _changed() {
    nextFrame((this._settleLater ??= () => this._settle()));
  }

  _settle() {
    const { scroller } = this.ui;
    if (this.stick) scroller.scrollTop = scroller.scrollHeight;
    this.ui.latest.hidden = this.stick || this._toEnd() < NEAR * 2;
  }

  _toEnd() {
    const { scroller } = this.ui;
    return scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight;
  }

  _scrolled() {
    const { scroller } = this.ui;
    const at = scroller.scrollTop;
    // Growing text moves the end away without anybody scrolling; only scrolling up means to stop following.
    if (this._toEnd() < NEAR) this.stick = true;
    else if (at < (this.at ?? 0)) this.stick = false;
    this.at = at;
    this.ui.latest.hidden = this.stick || this._toEnd() < NEAR * 2;
    if (at < 400) this.loadOlder();
  }

  toEnd() {
    this.stick = true;
    this._changed();
  }
}
