// The list of conversations.

import { insist, json } from "./api.js";
import { add, button, h } from "./dom.js";

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
    const page = await insist("GET", `/v1/conversations?${query}`, { attempts: 1 });
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

  draw() {
    const { list } = this.ui;
    const had = list.contains(document.activeElement) ? document.activeElement : null;
    const at = had && { key: had.closest("li")?.dataset.key, remove: had.classList.contains("remove") };
    const current = this.ui.current();
    this.items.sort((one, other) => (other.last_at ?? 0) - (one.last_at ?? 0));
    list.replaceChildren();
    add(list, this.items.map((item) => this._row(item, current)));
    if (this.items.length === 0) list.append(h("li", { class: "list-empty" }, "No conversations yet"));
    this.ui.more.hidden = ![...this.next.values()].some((after) => after !== null);
    if (at) {
      const row = [...list.children].find((li) => li.dataset.key === at.key);
      row?.querySelector(at.remove ? ".remove" : "a")?.focus({ preventScroll: true });
    }
  }

  _row(item, current) {
    const here = current && item.id === current.id && item.agent === current.agent;
    const title = (item.title ?? "").trim() || "Untitled";
    return h("li", { data: { key: key(item) }, class: here ? "here" : undefined },
      h("a", { href: this.ui.href(item.id, item.agent), "aria-current": here ? "page" : undefined },
        h("span", { class: "row-title", dir: "auto" }, title),
        h("span", { class: "row-meta" },
          item.running ? h("span", { class: "row-live" }, "Running") : null,
          this.ui.agents().length > 1 && item.agent ? h("span", { class: "row-agent" }, item.agent) : null,
          item.last_at ? h("time", { datetime: new Date(item.last_at * 1000).toISOString() }, ago(item.last_at)) : null)),
      button({ label: `Delete “${title.slice(0, 60)}”`, icon: "trash", kind: "quiet icon-only remove", onclick: () => this.ui.forget(item) }));
  }
}

/** As the server does it. */
const clip = (line) => (line.length <= 80 ? line : `${line.slice(0, 79)}…`);
const key = (item) => `${item.agent}/${item.id}`;
