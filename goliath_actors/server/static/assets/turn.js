// One ask and what came of it: as it happens, from events, or later, from the history. Both look the same.

import { ToolCard, ending, escalated, notice } from "./cards.js";
import { button, copyText, h, icon, nextFrame } from "./dom.js";
import { Markdown } from "./markdown.js";

const DOING = { plan: "Planning", arguments: "Preparing a tool", answer: "Writing", step: "Thinking", compact: "Summarising earlier messages", scribe: "Saving" };
const SLOW = 12; // ms that drawing a growing text may take before it is drawn less often

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const day = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

/** A piece of the answer's text, which may still grow. */
class Piece {
  constructor(changed) {
    this.el = h("div", { class: "text", dir: "auto" });
    this.view = new Markdown(this.el);
    this.parts = [];
    this.changed = changed;
    this.ready = 0; // when it may be drawn again
    this.draw = this.draw.bind(this);
  }

  get text() {
    if (this.parts.length > 1) this.parts = [this.parts.join("")];
    return this.parts[0] ?? "";
  }

  grow(text) {
    this.parts.push(text);
    nextFrame(this.draw);
  }

  set(text) {
    this.parts = [text];
    this.ready = 0;
    nextFrame(this.draw);
  }

  /** Show a whole text at once: who puts it above what is read has to know how high it is. */
  setNow(text) {
    this.parts = [text];
    this.view.set(text);
  }

  draw() {
    const begin = performance.now();
    if (begin < this.ready) {
      // Long answers cost more to draw: they are drawn less often, and the page stays quick.
      nextFrame(this.draw);
      return;
    }
    this.view.set(this.text);
    const cost = performance.now() - begin;
    this.ready = cost > SLOW ? begin + cost * 5 : 0;
    this.changed();
  }
}

export class Turn {
  /** `context`: the thread's `{changed, announce, isAgent, confirm, answer, retry, regenerate}`. */
  constructor(context, { ask = null, at = null, runId = null } = {}) {
    this.context = context;
    this.runId = runId;
    this.ask = ask;
    this.at = at ?? 0; // when it was asked
    this.unanswered = false; // the history has the ask alone
    this.cards = new Map();
    this.piece = null;
    this.pieces = [];
    this.steers = [];
    this.status = null;
    this.started = null;
    this.parts = h("div", { class: "parts" });
    this.doing = h("p", { class: "doing", hidden: true }, h("span", { class: "dots", "aria-hidden": "true" }, h("i"), h("i"), h("i")), h("span", { class: "doing-text" }));
    this.footer = h("footer", { class: "turn-foot" });
    this.answer = h("article", { class: "answer", "aria-label": "Assistant" }, h("h3", { class: "sr-only" }, "Assistant"), this.parts, this.doing, this.footer);
    this.el = h("section", { class: "turn" });
    if (ask !== null) this.el.append(said(ask, at));
    this.el.append(this.answer);
    if (runId) this.el.dataset.run = runId;
  }

  get busy() {
    return this.status === null && this.runId !== null;
  }

  get text() {
    return this.pieces.map((piece) => piece.text).filter(Boolean).join("\n\n");
  }

  setAsk(ask, at) {
    if (this.ask !== null || ask === null || ask === undefined) return;
    this.ask = ask;
    this.el.prepend(said(ask, at));
  }

  /** From now on this shows a run: the one that was asked for, or a later one that goes on with it. */
  setRun(runId) {
    this.runId = runId;
    this.el.dataset.run = runId;
    this.status = null;
    this.place = null;
    this.piece = null;
    this.footer.replaceChildren();
  }

  show(words) {
    this.piece?.el.classList.remove("writing");
    this.doing.hidden = words === "";
    if (words !== "") this.doing.lastChild.textContent = words;
    this.context.changed();
  }

  /** Say what goes on, unless it is a person's turn: who comes to a run is told open questions before its events. */
  _goesOn(words) {
    this.show([...this.cards.values()].some((card) => card.open) ? "" : words);
  }

  _text() {
    if (!this.piece) {
      const piece = new Piece(this.context.changed);
      this.pieces.push(piece);
      this._put(piece.el);
      this.piece = piece;
    }
    return this.piece;
  }

  _put(el, last = false) {
    this.piece?.el.classList.remove("writing");
    this.piece = null;
    // Who comes late is told of open questions first, and of what led to them afterwards.
    const open = last ? null : [...this.cards.values()].find((card) => card.open && card.el !== el);
    this.parts.insertBefore(el, open?.el ?? null);
    this.context.changed();
  }

  card(callId, tool, input, last = false) {
    let card = this.cards.get(callId);
    if (!card) {
      card = new ToolCard({ tool, input, callId });
      this.cards.set(callId, card);
      this._put(card.el, last);
    } else if (input !== undefined) card.update({ input });
    return card;
  }

  /** Take one event of the run. */
  take(event) {
    const { context } = this;
    switch (event.kind) {
      case "run-queued":
        this._goesOn("Waiting for its turn");
        break;
      case "run-started":
        this.started = event.at;
        this._goesOn("Thinking");
        break;
      case "model-started":
        this._goesOn(DOING[event.role] ?? "Thinking");
        break;
      case "model-finished":
        this.piece?.el.classList.remove("writing");
        break;
      case "plan-made":
        if (event.plan_kind === "tool" && event.brief) this._goesOn(event.brief);
        break;
      case "text-delta":
        this.show("");
        this._text().grow(event.text);
        this.piece.el.classList.add("writing");
        context.announce.stream(event.text);
        break;
      case "retraction":
        if (event.text || this.piece) this._text().set(event.text);
        context.announce.restart(event.text);
        break;
      case "answer":
        if (event.text && (this.piece?.text ?? "").trim() !== event.text.trim()) this._text().set(event.text);
        this.show("");
        context.announce.finish(event.text);
        break;
      case "confirmation-open":
        this.approval(event);
        break;
      case "confirmation-closed":
        this._decided(event);
        break;
      case "tool-started":
        this.card(event.call_id, event.tool, event.input).set("running");
        this.show(""); // the card says what goes on
        break;
      case "tool-progress":
        this.cards.get(event.call_id)?.progress(event);
        context.changed();
        break;
      case "tool-finished": {
        const card = this.card(event.call_id, event.tool, event.input);
        card.update({ result: event.result, error: event.error });
        if (card.open) card.settled(event.status === "skipped" ? "Not approved." : "Decided.", event.status !== "skipped");
        card.set(event.status, event.ms);
        this._goesOn("Thinking");
        break;
      }
      case "hook-decision":
        if (event.decision === "stop" && event.reason) this._put(notice(`Stopped by ${event.extension}: ${event.reason}`));
        break;
      case "steered":
        this.steered(event.text, false);
        break;
      case "escalate":
        this._put(notice(escalated(event.reason), { detail: event.error ?? "" }));
        break;
      case "memory-error":
        this._put(notice("This answer could not be saved. It will be missing after a reload.", { kind: "warn", detail: event.error }));
        break;
      case "run-waiting":
        for (const entry of event.entries ?? []) this.wait(entry);
        break;
      case "run-finished":
        this.finish(event);
        break;
    }
  }

  approval({ call_id: callId, agent, tool, input, brief, description }) {
    const card = this.card(callId, tool, input, true);
    if (card.open) return; // told again after a new connection
    this.show("");
    card.askApproval({ input, about: description, by: this.context.isAgent(agent) ? "" : agent, decide: (approve, reason) => this.context.confirm(this, callId, approve, reason) });
    this.context.announce.say(`Approval needed: ${tool}${brief ? `, ${brief}` : ""}.`);
    this.context.changed();
  }

  _decided({ call_id: callId, approved, reason }) {
    const card = this.cards.get(callId);
    if (!card?.open) return;
    card.settled(approved ? "Approved." : reason ? `Denied: ${reason}` : "Denied.", approved);
  }

  /** A new message was sent in place of an answer. */
  overtaken() {
    for (const card of this.cards.values()) if (card.open) card.settled("Refused: a new message was sent instead.", false);
  }

  /** Show a call that waits for a person, also when the run is over. */
  wait({ call_id: callId, tool, input, payload, kind }) {
    const card = this.card(callId, tool, input);
    if (card.open) return;
    if (kind === "approval") card.askApproval({ input, payload, decide: (approve) => this.context.answer(callId, approve), reasons: false });
    else card.askQuestion({ payload, answer: (value) => this.context.answer(callId, value) });
    this.context.announce.say(kind === "approval" ? `Approval needed: ${tool}.` : `${tool} asks you a question.`);
    this.context.changed();
  }

  /** A text that was handed in while this ran. `pending`: it is on its way. */
  steered(text, pending) {
    const waiting = this.steers.find((one) => one.pending && one.text === text);
    if (waiting) {
      if (pending) return waiting;
      waiting.pending = false;
      waiting.el.classList.remove("pending");
      this._put(waiting.el); // it was taken here
      return waiting;
    }
    const el = said(text, null);
    if (pending) el.classList.add("pending");
    const steer = { text, el, pending };
    this.steers.push(steer);
    if (pending) {
      this.answer.insertBefore(el, this.footer);
      this.context.changed();
    } else this._put(el);
    return steer;
  }

  finish({ status, reason, result, error }) {
    this.status = status;
    this.show("");
    for (const steer of this.steers) if (steer.pending) steer.el.remove();
    const waits = reason === "waiting";
    for (const card of this.cards.values()) if (!waits) card.close();
    const text = result?.text;
    if (text && !this.text.trim()) this._text().set(text);
    const end = ending({ status, reason });
    if (end) {
      const again = status !== "aborted" || reason !== "requested" || !this.text;
      this._put(notice(end.text, {
        kind: end.kind,
        actions: again && this.ask !== null ? [button({ text: "Retry", label: "Retry", icon: "again", kind: "plain small", onclick: () => this.context.retry(this) })] : [],
        detail: status === "error" ? [error?.detail || reason, this.runId].filter(Boolean).join(" · ") : "",
      }));
      this.context.announce.say(end.text);
    } else if (!this.text.trim() && !waits && this.cards.size === 0) {
      this._put(notice("There was no answer.", { kind: "warn" }));
    }
    if (waits) this.footer.replaceChildren();
    else this.foot();
  }

  /** The ask did not reach the server. */
  fail(error, retry) {
    this.status = "unsent";
    this.show("");
    this._put(notice(error.advice ?? String(error.message), {
      kind: "error",
      actions: [button({ text: "Retry", label: "Retry", icon: "again", kind: "plain small", onclick: () => { this.parts.replaceChildren(); this.status = null; retry(); } })],
    }));
    this.context.announce.say(error.advice ?? String(error.message));
  }

  foot() {
    const { text } = this;
    const copy = button({
      label: "Copy answer", icon: "copy", kind: "quiet icon-only",
      onclick: async () => {
        const done = await copyText(this.text);
        copy.replaceChildren(icon(done ? "check" : "copy"));
        if (done) this.context.announce.say("Copied.");
        setTimeout(() => copy.replaceChildren(icon("copy")), 1600);
      },
    });
    const again = button({ label: "Answer again", icon: "again", kind: "quiet icon-only again", onclick: () => this.context.regenerate(this) });
    this.footer.replaceChildren(...(text ? [copy] : []), ...(text && this.context.canRegenerate() ? [again] : []));
  }

  /** Take the entries of one finished turn of the history, without the ask. */
  restore(entries) {
    for (const entry of entries) {
      if (entry.role === "tool") {
        const card = this.card(entry.tool_call_id ?? entry.id, entry.name ?? "tool", undefined);
        card.update({ result: entry.text ?? "", input: entry.input });
        card.set(entry.status ?? "past", entry.ms);
      } else if (entry.role === "assistant") {
        for (const step of entry.steps ?? []) {
          const card = this.card(step.call_id ?? `${entry.id}-${this.cards.size}`, step.tool, step.input ?? undefined);
          card.update({ result: step.result ?? undefined });
          card.set(step.status);
        }
        if (entry.text) this._text().setNow(entry.text);
        for (const call of entry.tool_calls ?? []) this.card(call.id, call.name, call.input ?? parsed(call.arguments)).set("past");
        this.piece = null;
        if (entry.partial) this._put(notice("This answer was stopped before its end."));
      } else if (entry.role === "user") this._put(said(entry.text, entry.at));
      else if (entry.role === "summary") this._put(notice("Earlier messages were summarised for the model here."));
    }
    this.status = "completed";
    if (entries.length === 0) {
      this.unanswered = true;
      this._put(notice("There is no answer to this: it was stopped, or it failed.", {
        actions: [button({ text: "Retry", label: "Retry", icon: "again", kind: "plain small", onclick: () => this.context.retry(this) })],
      }));
    }
    this.foot();
  }
}

function said(text, at) {
  const time = at ? h("time", { class: "when", datetime: new Date(at * 1000).toISOString(), title: day.format(at * 1000) }, clock.format(at * 1000)) : null;
  return h("article", { class: "said", "aria-label": "You" }, h("h3", { class: "sr-only" }, "You"), h("div", { class: "bubble", dir: "auto" }, text), time);
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
