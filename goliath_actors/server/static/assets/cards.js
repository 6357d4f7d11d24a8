// Cards in an answer: what a tool was given and said, what a person is asked, and what went wrong.

import { add, button, h, icon, pretty, spelledOut } from "./dom.js";
import { codeBlock } from "./markdown.js";

const STATES = {
  asking: ["shield", "Needs your approval"],
  waiting: ["question", "Waits for you"],
  running: [null, "Running"],
  allowed: ["check", "Allowed"], // a call of another agent's, of which no more is told
  executed: ["check", "Done"],
  cached: ["check", "Reused an earlier result"],
  skipped: ["minus", "Not run"],
  failed: ["alert", "Failed"],
  unknown: ["alert", "Outcome unknown"],
  past: ["check", ""],
};

const isEmpty = (input) => input === null || input === undefined || (typeof input === "object" && Object.keys(input).length === 0);

export function duration(ms) {
  if (!(ms >= 0)) return "";
  if (ms < 1000) return `${Math.max(1, Math.round(ms))} ms`;
  return ms < 60_000 ? `${(ms / 1000).toFixed(1)} s` : `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
}

/** One call of a tool: a line that opens. A question about the call stands below it, and cannot be closed. */
export class ToolCard {
  constructor({ tool, input, callId }) {
    this.tool = tool;
    this.callId = callId;
    this.mark = h("span", { class: "card-mark", "aria-hidden": "true" });
    this.hint = h("span", { class: "card-hint", dir: "auto" });
    this.state = h("span", { class: "card-state" });
    this.body = h("div", { class: "card-body" });
    this.details = h("details", {},
      h("summary", {}, this.mark, h("span", { class: "card-name" }, tool), this.hint, this.state, icon("chevron")),
      this.body);
    this.ask = h("div", { class: "card-ask", hidden: true });
    this.steps = h("div", { class: "card-progress", hidden: true });
    this.el = h("div", { class: "card", data: { callId, tool } }, this.details, this.steps, this.ask);
    // What is inside is made when it is opened first: a long history has thousands of results.
    this.details.addEventListener("toggle", () => this.details.open && this._fill());
    this.input = input;
    this.result = undefined;
    this.error = null;
    this._hint();
    this.set("running");
  }

  set(state, ms) {
    this.status = state;
    if (state !== "running") this.steps.hidden = true;
    const [mark, words] = STATES[state] ?? STATES.past;
    this.el.dataset.state = state;
    this.mark.replaceChildren(mark ? icon(mark) : h("span", { class: "spinner" }));
    const time = ms > 0 ? duration(ms) : "";
    this.state.textContent = [state === "executed" && time ? "" : words, time].filter(Boolean).join(" · ");
    // "Done" is said by the mark for those who see it.
    if (state === "executed" && time) this.state.prepend(h("span", { class: "sr-only" }, "Done, "));
  }

  update({ input, result, error }) {
    if (input !== undefined) this.input = input;
    if (result !== undefined) this.result = result;
    if (error) this.error = error;
    this._hint();
    if (this.details.open) this._fill();
  }

  /** Show how far the tool says that it is. */
  progress({ progress, total, message }) {
    if (this.status !== "running") return;
    const known = total > 0;
    const bar = h("progress", { max: known ? total : undefined, value: known ? Math.min(progress, total) : undefined, "aria-label": `Progress of ${this.tool}` });
    this.steps.replaceChildren(bar, h("span", { dir: "auto" }, message || (known ? `${progress} of ${total}` : String(progress))));
    this.steps.hidden = false;
  }

  _hint() {
    const values = isEmpty(this.input) ? [] : typeof this.input === "object" ? Object.values(this.input) : [this.input];
    this.hint.textContent = spelledOut(values.map((value) => (typeof value === "string" ? value : JSON.stringify(value))).join(", ").slice(0, 160).replace(/\s+/g, " "));
  }

  _fill() {
    const parts = [h("h4", {}, "Input"), isEmpty(this.input) ? h("p", { class: "faint" }, "None") : codeBlock(pretty(this.input), typeof this.input === "string" ? "" : "json")];
    if (this.result !== undefined) parts.push(h("h4", {}, "Result"), this.result === "" ? h("p", { class: "faint" }, "Empty") : codeBlock(pretty(this.result)));
    if (this.error) parts.push(h("h4", {}, "Error"), codeBlock(pretty(this.error)));
    this.body.replaceChildren(...parts);
  }

  /**
   * Ask whether the call may go ahead. `decide(approve, reason)` rejects when the answer did not arrive; `by` names the
   * agent whose call it is, if that is another one's.
   */
  askApproval({ input, about, payload, decide, by = "", reasons = true }) {
    this.by = by;
    if (input !== undefined) this.update({ input });
    this.set("asking");
    const id = `ask-${this.callId}`;
    const reason = h("input", { type: "text", class: "field", placeholder: "Reason (optional)", "aria-label": "Reason for your decision, optional", dir: "auto", maxlength: "500", autocomplete: "off" });
    const error = h("p", { class: "card-error", role: "alert", hidden: true });
    const buttons = [];
    const answer = async (approve) => {
      this._keepFocus();
      for (const el of [...buttons, reason]) el.disabled = true;
      error.hidden = true;
      try {
        await decide(approve, reason.value.trim());
        this.settled(approve ? "You approved this." : "You denied this.", approve);
      } catch (problem) {
        for (const el of [...buttons, reason]) el.disabled = false;
        error.textContent = problem.advice ?? String(problem.message ?? problem);
        error.hidden = false;
      }
    };
    buttons.push(
      button({ text: "Approve", label: "Approve", kind: "primary", onclick: () => answer(true) }),
      button({ text: "Deny", label: "Deny", kind: "plain", onclick: () => answer(false) }));
    reason.addEventListener("keydown", (event) => {
      if (event.key === "Enter") event.preventDefault();
    });
    this._ask(id, h("h4", { id, class: "ask-title", dir: "auto" }, "Allow ", by ? [h("span", {}, by), " to use "] : null, h("code", {}, this.tool), "?"),
      about ? h("p", { class: "ask-about", dir: "auto" }, about) : null,
      isEmpty(this.input)
        ? h("p", { class: "faint" }, "It will be called without any input.")
        : [h("p", { class: "faint" }, "It will be called with exactly this:"), codeBlock(pretty(this.input), "json")],
      payload === undefined || payload === null ? null : h("p", { class: "faint", dir: "auto" }, "Note: ", pretty(payload)),
      h("div", { class: "ask-row" }, ...buttons, reasons ? reason : null), error);
    return buttons[0];
  }

  /** Ask for an answer that the tool waits for. */
  askQuestion({ payload, answer }) {
    this.set("waiting");
    const id = `ask-${this.callId}`;
    const { question, options, rest } = readQuestion(payload);
    const field = h("textarea", { class: "field", rows: "1", dir: "auto", "aria-labelledby": id, placeholder: "Your answer" });
    const error = h("p", { class: "card-error", role: "alert", hidden: true });
    const send = button({ text: "Answer", label: "Answer", kind: "primary", onclick: () => give(field.value.trim()) });
    const choices = options.map((option) => button({ text: String(option), label: String(option), kind: "plain", onclick: () => give(option) }));
    const all = [field, send, ...choices];
    const give = async (value) => {
      if (value === "") return field.focus();
      this._keepFocus();
      for (const el of all) el.disabled = true;
      error.hidden = true;
      try {
        await answer(value);
        this.settled(`You answered: ${typeof value === "string" ? value : JSON.stringify(value)}`, true);
      } catch (problem) {
        for (const el of all) el.disabled = false;
        error.textContent = problem.advice ?? String(problem.message ?? problem);
        error.hidden = false;
      }
    };
    field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      give(field.value.trim());
    });
    this._ask(id, h("h4", { id, class: "ask-title", dir: "auto" }, question),
      rest === null ? null : codeBlock(pretty(rest), "json"),
      choices.length ? h("div", { class: "ask-row" }, choices) : null,
      h("div", { class: "ask-row" }, field, send), error);
    return field;
  }

  _ask(id, ...parts) {
    this.ask.setAttribute("role", "group");
    this.ask.setAttribute("aria-labelledby", id);
    this.ask.replaceChildren();
    add(this.ask, parts);
    this.ask.hidden = false;
    this.open = true;
  }

  /** A control loses the focus when it is disabled, before it is gone. */
  _keepFocus() {
    this.hadFocus = this.ask.contains(document.activeElement);
  }

  /** The question has its answer: keep one line of it. */
  settled(text, good) {
    this.open = false;
    this.ask.removeAttribute("aria-labelledby");
    this.ask.removeAttribute("role");
    if (!this.hadFocus) this._keepFocus();
    this.ask.replaceChildren(h("p", { class: "ask-said", dir: "auto" }, icon(good ? "check" : "close"), text));
    this.ask.hidden = false;
    if (this.status === "asking" || this.status === "waiting") this.set(!good ? "skipped" : this.by ? "allowed" : "running");
    // On a touch screen that would bring up the keyboard.
    if (this.hadFocus && matchMedia("(hover: hover)").matches) document.getElementById("ask")?.focus({ preventScroll: true });
    this.hadFocus = false;
  }

  /** The run is over: nothing of it can go on. */
  close() {
    if (this.status === "running" || this.status === "asking") this.set("skipped");
    if (!this.open) return;
    this.open = false;
    this.ask.hidden = true;
  }
}

/** Read a tool's payload as a question, choices, and what else there is to show. */
function readQuestion(payload) {
  if (typeof payload === "string" && payload.trim()) return { question: payload, options: [], rest: null };
  if (payload && typeof payload === "object" && !Array.isArray(payload)) {
    const { ...rest } = payload;
    const take = (names) => {
      const name = names.find((one) => rest[one] !== undefined);
      const value = name && rest[name];
      if (name) delete rest[name];
      return value;
    };
    const question = take(["question", "text", "prompt", "message", "ask"]);
    const options = take(["options", "choices"]);
    return {
      question: typeof question === "string" && question ? question : "The tool asks for an answer",
      options: Array.isArray(options) ? options.filter((one) => ["string", "number", "boolean"].includes(typeof one)).slice(0, 12) : [],
      rest: Object.keys(rest).length ? rest : null,
    };
  }
  return { question: "The tool asks for an answer", options: [], rest: payload ?? null };
}

/** A line between the parts of an answer. */
export function notice(text, { kind = "info", actions = [], detail = "" } = {}) {
  return h("div", { class: `notice ${kind}` },
    icon(kind === "error" || kind === "warn" ? "alert" : "minus"),
    h("div", { class: "notice-text" }, h("p", { dir: "auto" }, text), detail ? h("p", { class: "faint", dir: "auto" }, detail) : null),
    actions.length ? h("div", { class: "notice-actions" }, actions) : null);
}

const FAILURES = {
  ModelUnavailable: "The model cannot be reached. Check that its server is running, then retry.",
  RateLimited: "The model has too much to do. Wait a moment, then retry.",
  ContextOverflow: "This conversation has become too long for the model. Start a new one.",
  GoliathBudgetError: "This conversation has become too long for the model. Start a new one.",
  Refused: "The model refused to answer this. Ask in another way.",
  BadRequest: "The model's server did not understand the request. Its settings need a look.",
  FallbackError: "The second model failed too. Retry in a moment.",
  StoreCorrupt: "This conversation's record is damaged. Start a new one; the server's log says more.",
  StoreConflict: "Somebody else changed this conversation at the same time. Reload the page, then retry.",
  StoreError: "The conversation could not be read or saved. Retry in a moment.",
};
const ABORTS = {
  deadline: "This took too long and was stopped. Retry, or ask for less at once.",
  shutdown: "The server was shut down before this was finished. Retry when it is back.",
  caller: "This was stopped because the one who asked left.",
};

/** Return how a run that ended badly is put, or null: `{text, kind}`. */
export function ending({ status, reason }) {
  if (status === "error") {
    return { kind: "error", text: FAILURES[reason] ?? "Something went wrong while answering. Retry; if it happens again, the server's log says why." };
  }
  if (status === "aborted") return reason in ABORTS ? { kind: "warn", text: ABORTS[reason] } : { kind: "info", text: "You stopped this answer." };
  if (status === "lost") return { kind: "warn", text: "The server was restarted before this was finished. Retry to ask again." };
  return null;
}

const ESCALATIONS = {
  "context-budget": "it became too long for the model",
  "max-steps": "it took too many steps",
  "model-error": "the model failed",
  "model-unavailable": "the model could not be reached",
  "plan-invalid": "the model made no usable plan",
  "tool-args-invalid": "the model could not fill in a tool's input",
  refused: "the model refused",
};

/** Put an escalation into words. */
export function escalated(reason) {
  return `This could not be finished as planned: ${ESCALATIONS[reason] ?? reason.replaceAll("-", " ")}.`;
}
