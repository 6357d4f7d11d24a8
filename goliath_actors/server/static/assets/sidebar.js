// The list of conversations.

import { insist, json } from "./api.js";
import { button, h } from "./dom.js";

const PAGE = 50;
const REFRESH = 20_000; // ms
const SETTLING = 10_000; // ms

const relative = new Intl.RelativeTimeFormat(undefined, { numeric: "auto", style: "narrow" });
const date = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });

function ago(at) {
  const seconds = Date.now() / 1000 - at;
  if (seconds < 50) return "now";
  if (seconds < 3000) return relative.format(-Math.round(seconds / 60), "minute");
  if (seconds < 80_000) return relative.format(-Math.round(seconds / 3600), "hour");
  if (seconds < 6 * 86_400) return relative.format(-Math.round(seconds / 86_400), "day");
  return date.format(at * 1000);
}

export class Sidebar {
  /** `ui`: `{list, more, agents(), href(id, agent), forget(item), current()}`. */
  constructor(ui) {
    this.ui = ui;
    this.items = [];
    this.rows = new Map(); // key → what shows it
    this.empty = h("li", { class: "list-empty" }, "No conversations yet");
    this.next = new Map(); // agent → where its list goes on, null at its end
    setInterval(() => !document.hidden && this.refresh().catch(() => {}), REFRESH);
  }

  /** Read the newest of every agent's conversations. */
  async refresh() {
    const pages = await Promise.all(this.ui.agents().map((agent) => this._page(agent, null)));
    const fresh = pages.flat();
    const known = new Set(fresh.map(key));
    // What was sent a moment ago may not be on record yet; what was loaded further down stays.
    const now = Date.now();
    this.items = [...fresh, ...this.items.filter((item) => !known.has(key(item)) && (item.further || now - item.touched < SETTLING))];
    this.draw();
  }

  async _page(agent, after) {
    const query = new URLSearchParams({ agent, limit: PAGE, ...(after ? { after } : {}) });
    const page = await insist("GET", `v1/conversations?${query}`, { attempts: 1 });
    if (after || !this.next.has(agent)) this.next.set(agent, page.next ?? null);
    return page.conversations;
  }

  async more() {
    const known = new Set(this.items.map(key));
    for (const [agent, after] of this.next) {
      if (after === null) continue;
      const rows = await this._page(agent, after);
      this.items.push(...rows.filter((item) => !known.has(key(item))).map((item) => ({ ...item, further: true })));
    }
    this.draw();
  }

  /** A message was sent: its conversation goes to the top. */
  touch(id, agent, ask) {
    let item = this.items.find((one) => one.id === id && one.agent === agent);
    if (!item) this.items.push((item = { id, agent, title: clip(ask.trim().split("\n")[0]) }));
    item.last_at = Date.now() / 1000;
    item.touched = Date.now();
    this.draw();
  }

  remove(item) {
    this.items = this.items.filter((one) => key(one) !== key(item));
    this.draw();
  }

  /** Bring the list up to date. Rows stay the same elements: what is being clicked or has the focus is not taken away. */
  draw() {
    const { list } = this.ui;
    const current = this.ui.current();
    this.items.sort((one, other) => (other.last_at ?? 0) - (one.last_at ?? 0));
    const rows = new Map();
    for (const item of this.items) {
      const row = this.rows.get(key(item)) ?? new Row(this.ui);
      row.show(item, Boolean(current) && item.id === current.id && item.agent === current.agent);
      rows.set(key(item), row);
    }
    this.rows = rows;
    const wanted = [...rows.values()].map((row) => row.el);
    if (wanted.length === 0) wanted.push(this.empty);
    if (wanted.length !== list.children.length || wanted.some((el, at) => list.children[at] !== el)) {
      const had = list.contains(document.activeElement) ? document.activeElement : null;
      list.replaceChildren(...wanted);
      if (had?.isConnected) had.focus({ preventScroll: true });
    }
    this.ui.more.hidden = ![...this.next.values()].some((after) => after !== null);
  }
}

class Row {
  constructor(ui) {
    this.ui = ui;
    this.title = h("span", { class: "row-title", dir: "auto" });
    this.live = h("span", { class: "row-live", hidden: true }, "Running");
    this.agent = h("span", { class: "row-agent", hidden: true });
    this.time = h("time");
    this.link = h("a", {}, this.title, h("span", { class: "row-meta" }, this.live, this.agent, this.time));
    this.remove = button({ label: "Delete", icon: "trash", kind: "quiet icon-only remove", onclick: () => ui.forget(this.item) });
    this.el = h("li", {}, this.link, this.remove);
  }

  show(item, here) {
    this.item = item;
    const title = (item.title ?? "").trim() || "Untitled";
    put(this.title, title);
    this.live.hidden = !item.running;
    this.agent.hidden = this.ui.agents().length < 2;
    put(this.agent, item.agent);
    put(this.time, item.last_at ? ago(item.last_at) : "");
    if (item.last_at) this.time.dateTime = new Date(item.last_at * 1000).toISOString();
    this.link.href = this.ui.href(item.id, item.agent);
    this.el.classList.toggle("here", here);
    if (here) this.link.setAttribute("aria-current", "page");
    else this.link.removeAttribute("aria-current");
    this.remove.title = `Delete “${title.slice(0, 60)}”`;
    this.remove.setAttribute("aria-label", this.remove.title);
  }
}

function put(el, text) {
  if (el.textContent !== text) el.textContent = text;
}

/** As the server does it. */
const clip = (line) => (line.length <= 80 ? line : `${line.slice(0, 79)}…`);
const key = (item) => `${item.agent}/${item.id}`;
