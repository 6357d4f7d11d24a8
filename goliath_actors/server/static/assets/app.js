// The page: which conversation is open, what is being written, and the few things around it.

import { ApiError, hasToken, insist, json, onConnection, onSignIn, setToken } from "./api.js";
import { Announcer } from "./announce.js";
import { button, h, icon } from "./dom.js";
import { Sidebar } from "./sidebar.js";
import { Thread } from "./thread.js";

const $ = (id) => document.getElementById(id);
const ask = $("ask");
const drafts = new Map(); // conversation → what is written and not sent, kept by the tab
const tabs = "BroadcastChannel" in globalThis ? new BroadcastChannel("goliath-actors") : null;
const narrow = matchMedia("(max-width: 52rem)");

let agents = [];
let thread = null;
let place = null; // {id, agent, isNew}
let eager = false; // whether Enter was pressed while nothing could be sent: what was written is sent once it can be

// --- storage, which can be switched off -------------------------------------------------------------------------------

function stored(area, name, value) {
  try {
    if (value === undefined) return area().getItem(name);
    if (value === null) area().removeItem(name);
    else area().setItem(name, value);
  } catch {
    // Then it is not remembered.
  }
  return null;
}
const local = () => localStorage;
const session = () => sessionStorage;

// --- theme --------------------------------------------------------------------------------------------------------------

const THEMES = ["auto", "light", "dark"];
const THEME_ICON = { auto: "auto", light: "sun", dark: "moon" };
const THEME_NAME = { auto: "System theme", light: "Light theme", dark: "Dark theme" };

function theme() {
  return document.documentElement.dataset.theme ?? "auto";
}

function showTheme() {
  $("theme").replaceChildren(icon(THEME_ICON[theme()]), h("span", {}, THEME_NAME[theme()]));
  $("theme").title = `Switch to: ${THEME_NAME[THEMES[(THEMES.indexOf(theme()) + 1) % 3]]}`;
}

$("theme").addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(theme()) + 1) % 3];
  if (next === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  stored(local, "goliath-theme", next === "auto" ? null : next);
  showTheme();
});

// --- the conversation that is open ----------------------------------------------------------------------------------------

const announce = new Announcer($("live"));

const ui = {
  scroller: $("scroller"),
  list: $("thread"),
  latest: $("latest"),
  announce,
  agentOf: (name) => agents.find((agent) => agent.name === name),
  changed() {
    showState();
    sendEarly();
  },
  unsent() {
    eager = false; // what was written after a message that did not arrive waits for its reader
  },
  toast,
  restore(text) {
    if (!ask.value.trim()) setDraft(text);
  },
  begun(from, run) {
    tabs?.postMessage({ conversation: from.id, run });
  },
  sent(from, turn) {
    sidebar.touch(from.id, from.agent, turn.ask);
    tabs?.postMessage({ conversation: from.id, run: turn.runId });
    if (place?.isNew && place.id === from.id) {
      place.isNew = false;
      history.replaceState(null, "", href(from.id, from.agent));
      showTitle();
      sidebar.draw();
    }
  },
  finished(from, run) {
    sidebar.refresh().catch(() => {});
    tabs?.postMessage({ conversation: from.id, run });
  },
};

const sidebar = new Sidebar({
  list: $("rows"), more: $("more"),
  agents: () => agents.map((agent) => agent.name),
  href,
  current: () => place,
  forget,
});

tabs?.addEventListener("message", ({ data }) => {
  if (data.deleted) {
    if (thread && data.conversation === thread.id && data.agent === thread.agent) {
      startNew();
      toast("This conversation was deleted in another tab.");
    }
  } else if (thread && data.conversation === thread.id && !thread.runs.has(data.run)) thread.sync(true).catch(() => {});
  sidebar.refresh().catch(() => {});
});

function href(id, agent) {
  return `#/${encodeURIComponent(agent ?? "")}/${encodeURIComponent(id)}`;
}

function fromHash() {
  const found = /^#\/([^/]*)\/(.+)$/.exec(location.hash);
  try {
    if (found) return { id: decodeURIComponent(found[2]), agent: decodeURIComponent(found[1]), isNew: false };
  } catch {
    // A broken address opens a new conversation.
  }
  return { id: newId(), agent: $("agent").value || agents[0]?.name || null, isNew: true };
}

/** A new conversation's id. Lists are in the order of ids, so the newest has the smallest. */
function newId() {
  const hex = (value, width) => value.toString(16).padStart(width, "0");
  const random = [...crypto.getRandomValues(new Uint8Array(8))].map((byte) => hex(byte, 2)).join("");
  return `chat-${hex(0xffffffffffff - Date.now(), 12)}-${random}`;
}

async function open(target = fromHash()) {
  const early = place === null ? ask.value : ""; // written before there was a conversation to write in
  if (place !== null) eager = false;
  keepDraft();
  thread?.close();
  announce.clear();
  place = target;
  const mine = (thread = new Thread(ui, place.id, place.agent));
  $("latest").hidden = true;
  setDraft(early || (drafts.get(place.isNew ? "new" : place.id) ?? stored(session, `draft:${place.isNew ? "new" : place.id}`) ?? ""));
  showTitle();
  showAgent();
  sidebar.draw();
  drawer(false);
  if (!narrow.matches) ask.focus({ preventScroll: true });
  if (place.isNew) {
    mine.loaded = true;
    showState();
    sendEarly();
    return;
  }
  $("thread").setAttribute("aria-busy", "true");
  showState();
  try {
    await mine.open();
  } catch (error) {
    if (mine === thread) failed(error);
  } finally {
    if (mine === thread) $("thread").removeAttribute("aria-busy");
  }
  showState();
  if (mine === thread) sendEarly();
}

function failed(error) {
  const advice = error instanceof ApiError ? error.advice : "This conversation could not be shown. Reload the page.";
  ui.list.replaceChildren(h("div", { class: "notice error" }, icon("alert"), h("div", { class: "notice-text" }, h("p", {}, advice)),
    h("div", { class: "notice-actions" }, button({ text: "Retry", label: "Retry", icon: "again", kind: "plain small", onclick: () => open() }))));
}

function showTitle() {
  const item = sidebar.items.find((one) => one.id === place.id && one.agent === place.agent);
  const title = place.isNew ? "New conversation" : (item?.title ?? "").trim() || thread?.turns?.[0]?.ask || "Conversation";
  $("title").textContent = title;
  document.title = place.isNew ? "Chat" : `${title.slice(0, 60)} · Chat`;
  $("bar-agent").hidden = agents.length < 2 || !place.agent;
  $("bar-agent").textContent = place.agent ?? "";
}

function showState() {
  if (!thread) return;
  const { busy, sending } = thread;
  const text = ask.value.trim() !== "";
  const empty = thread.empty && thread.loaded === true;
  $("main").dataset.busy = String(Boolean(busy || sending));
  $("welcome").hidden = !empty;
  $("stop").hidden = !busy && !sending;
  $("send").hidden = (busy || sending) && !text;
  $("send").disabled = !text;
  $("send").setAttribute("aria-label", busy ? (thread.steerable ? "Send to the running answer" : "Send after this answer") : "Send");
  $("send").title = $("send").getAttribute("aria-label");
  const question = thread.openQuestion;
  $("review").hidden = !question || inView(question);
  if (busy && text) $("hint").textContent = thread.steerable ? "Enter adds this to the answer that is being written" : "Enter sends this as the next message";
  else if (busy) $("hint").textContent = "Escape stops the answer";
  else if (question && text) $("hint").textContent = "Sending a message instead of deciding counts as a refusal";
  else $("hint").textContent = "Enter sends, Shift+Enter makes a new line";
}

function inView(el) {
  const box = el.getBoundingClientRect();
  const view = $("scroller").getBoundingClientRect();
  return box.bottom > view.top + 40 && box.top < view.bottom - 40;
}

$("scroller").addEventListener("scroll", () => {
  const question = thread?.openQuestion;
  $("review").hidden = !question || inView(question);
}, { passive: true });

// --- writing ------------------------------------------------------------------------------------------------------------

function setDraft(text) {
  ask.value = text;
  fit();
}

function fit() {
  if (CSS.supports("field-sizing", "content")) return;
  ask.style.height = "auto";
  ask.style.height = `${Math.min(ask.scrollHeight, 220)}px`;
}

function keepDraft() {
  if (!place) return;
  const name = place.isNew ? "new" : place.id;
  if (ask.value) drafts.set(name, ask.value);
  else drafts.delete(name);
  stored(session, `draft:${name}`, ask.value || null);
}

ask.addEventListener("input", () => {
  eager = false;
  fit();
  showState();
});
addEventListener("pagehide", keepDraft);

ask.addEventListener("keydown", (event) => {
  // While an input method is composing, Enter takes its suggestion.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
  event.preventDefault();
  submit();
});

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});

function submit() {
  const text = ask.value.trim();
  if (!text) return;
  if (!thread?.loaded || thread.sending) {
    eager = true; // one at a time, so that messages arrive in the order in which they were written
    return;
  }
  setDraft("");
  keepDraft();
  thread.send(text);
  showState();
  ask.focus({ preventScroll: true });
}

function sendEarly() {
  if (!eager || !thread?.loaded || thread.sending) return;
  eager = false;
  submit();
}

function stop() {
  eager = false;
  thread?.stop();
}

$("stop").addEventListener("click", () => {
  stop();
  ask.focus({ preventScroll: true });
});

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.isComposing || document.querySelector("dialog[open]")) return;
  if (event.key === "Escape") {
    if (document.body.classList.contains("drawer")) drawer(false);
    else if (thread?.busy || thread?.sending) stop();
    else return;
    event.preventDefault();
  } else if (event.altKey && !event.ctrlKey && !event.metaKey && event.code === "KeyN") {
    event.preventDefault();
    startNew();
  }
});

$("latest").addEventListener("click", () => {
  thread?.toEnd();
  ask.focus({ preventScroll: true });
});
$("review").addEventListener("click", () => {
  const question = thread?.openQuestion;
  question?.scrollIntoView({ block: "center" });
  question?.querySelector("button, textarea")?.focus({ preventScroll: true });
});
$("skip").addEventListener("click", (event) => {
  event.preventDefault();
  ask.focus();
});

// --- the list -----------------------------------------------------------------------------------------------------------

function startNew() {
  if (location.hash === "" || location.hash === "#/new") open({ ...fromHash(), isNew: true });
  else location.hash = "#/new";
}

$("new").addEventListener("click", (event) => {
  event.preventDefault();
  startNew();
});
addEventListener("hashchange", () => {
  const target = fromHash();
  // The address of a new conversation is set when its first message is sent: it is open already.
  if (!target.isNew && place && target.id === place.id && target.agent === place.agent && !place.isNew) return;
  open(target);
});
$("rows").addEventListener("click", (event) => {
  // The conversation that is open already is shown, too.
  if (event.target.closest("a")) drawer(false);
});
$("agent").addEventListener("change", () => {
  if (place?.isNew) open();
  else startNew();
});
$("more").addEventListener("click", () => sidebar.more().catch((error) => toast(error.advice ?? "The list could not be loaded.")));

async function forget(item) {
  const dialog = $("confirm");
  $("confirm-text").textContent = `“${(item.title ?? "Untitled").slice(0, 120)}” and everything in it will be gone for good.`;
  $("confirm-error").hidden = true;
  if (!(await answered(dialog))) return;
  try {
    await json("DELETE", `v1/conversations/${encodeURIComponent(item.id)}?agent=${encodeURIComponent(item.agent)}`);
  } catch (error) {
    if (!(error instanceof ApiError && error.status === 404)) return toast(error.advice ?? "It could not be deleted.");
  }
  sidebar.remove(item);
  announce.say("Conversation deleted.");
  tabs?.postMessage({ conversation: item.id, agent: item.agent, deleted: true });
  if (place && item.id === place.id) startNew();
  else $("new").focus();
}

/** Show a dialog; true if it was left with "yes". The browser keeps the focus inside, and gives it back. */
function answered(dialog) {
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }));
}

function drawer(shown) {
  const was = document.body.classList.contains("drawer");
  document.body.classList.toggle("drawer", shown);
  $("menu").setAttribute("aria-expanded", String(shown));
  $("veil").hidden = !shown;
  $("main").inert = shown;
  $("side").inert = narrow.matches && !shown;
  if (shown) $("side-close").focus();
  else if (was) $("menu").focus();
}

$("menu").addEventListener("click", () => drawer(true));
$("side-close").addEventListener("click", () => drawer(false));
$("veil").addEventListener("click", () => drawer(false));
narrow.addEventListener("change", () => drawer(false));

// --- around it ------------------------------------------------------------------------------------------------------------

function toast(text) {
  const el = h("div", { class: "toast" }, text);
  $("toasts").append(el);
  setTimeout(() => el.remove(), 6_000);
}

let losing = null;
onConnection((lost) => {
  // What is mended at once need not be told.
  clearTimeout(losing);
  if (lost) {
    losing = setTimeout(() => {
      $("lost").hidden = false;
      announce.say("Connection lost. Trying again.");
    }, 500);
  } else if (!$("lost").hidden) {
    $("lost").hidden = true;
    announce.say("Connected again.");
  }
});

let signingIn = null;
onSignIn(() => {
  signingIn ??= (async () => {
    $("sign-in-text").textContent = hasToken()
      ? "This token is not accepted (any more). Whoever runs the server can give you another."
      : "This server lets in those who have a token. Whoever runs it can give you one.";
    $("token").value = "";
    if (!(await answered($("sign-in")))) return false;
    setToken($("token").value.trim(), $("keep").checked);
    $("sign-out").hidden = false;
    return true;
  })().finally(() => (signingIn = null));
  return signingIn;
});
$("sign-out").addEventListener("click", () => {
  setToken(null);
  location.reload();
});

function dress() {
  for (const [id, name] of [["side-close", "close"], ["menu", "menu"], ["demo-close", "close"], ["stop", "stop"], ["send", "send"]]) $(id).append(icon(name));
  $("stop").setAttribute("aria-label", "Stop the answer");
  $("stop").title = "Stop the answer (Escape)";
  $("new").append(icon("plus"), h("span", {}, "New conversation"));
  $("latest").append(icon("down"), h("span", {}, "Jump to latest"));
  $("review").append(icon("question"), h("span", {}, "Your decision is needed"));
  $("sign-out").append(icon("key"), h("span", {}, "Forget token"));
  $("sign-out").hidden = !hasToken();
  showTheme();
  drawer(false);
}

function showAgents() {
  const pick = $("agent");
  pick.replaceChildren(...agents.map((agent) => h("option", { value: agent.name }, agent.name)));
  $("agent-pick").hidden = agents.length < 2;
}

/** What depends on the agent of the conversation that is open. */
function showAgent() {
  const agent = ui.agentOf(place.agent);
  $("demo").hidden = agent?.model !== "demo" || stored(session, "goliath-demo") === "hidden";
  const tools = agent?.tools ?? [];
  const asks = tools.some((tool) => tool.confirm);
  $("welcome-text").textContent = !tools.length ? "Ask anything."
    : asks ? "Ask anything. These are my tools; those with a shield ask you first." : "Ask anything. These are my tools.";
  $("welcome-tools").replaceChildren(...tools.slice(0, 8).map((tool) =>
    h("li", { class: tool.confirm ? "tool asks" : "tool" },
      h("code", {}, tool.name), tool.confirm ? [icon("shield"), h("span", { class: "sr-only" }, "asks first")] : null,
      h("p", { dir: "auto" }, (tool.description ?? "").trim().split("\n")[0]))));
}

$("demo-close").addEventListener("click", () => {
  $("demo").hidden = true;
  stored(session, "goliath-demo", "hidden");
  ask.focus({ preventScroll: true });
});

async function begin() {
  dress();
  agents = (await insist("GET", "v1/agents")).agents;
  showAgents();
  const listed = sidebar.refresh().catch(() => {});
  await open();
  await listed;
  showTitle();
}

begin().catch((error) => failed(error));
