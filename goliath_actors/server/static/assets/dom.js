// Building elements. Text only ever goes in as text nodes: nothing in this page parses a string as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** Make an element. `props`: `class`, `on: {event: fn}`, `data: {...}`, properties that the element has, else attributes. */
export function h(tag, props = {}, ...children) {
  const el = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") el.className = value;
    else if (name === "on") for (const [event, fn] of Object.entries(value)) el.addEventListener(event, fn);
    else if (name === "data") Object.assign(el.dataset, value);
    else if (value === true) el.setAttribute(name, "");
    else el.setAttribute(name, String(value));
  }
  add(el, children);
  return el;
}

export function add(el, children) {
  for (const child of [children].flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    el.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return el;
}

// Strokes on a 20 by 20 grid.
const PATHS = {
  plus: "M10 4v12M4 10h12",
  menu: "M3 6h14M3 10h14M3 14h14",
  close: "M5 5l10 10M15 5L5 15",
  trash: "M4 6h12M8 6V4h4v2M6 6l.7 10h6.6L14 6",
  send: "M10 16V4M5 9l5-5 5 5",
  stop: "M6 6h8v8H6z",
  copy: "M7 7h9v9H7zM4 13V4h9",
  check: "M4 10.5l4 4 8-9",
  again: "M15.5 6.5A6.5 6.5 0 1 0 16.5 10M16 3v4h-4",
  down: "M10 4v12M5 11l5 5 5-5",
  chevron: "M7 5l5 5-5 5",
  sun: "M10 6.5a3.5 3.5 0 1 1 0 7 3.5 3.5 0 0 1 0-7zM10 2v1.5M10 16.5V18M2 10h1.5M16.5 10H18M4.3 4.3l1.1 1.1M14.6 14.6l1.1 1.1M4.3 15.7l1.1-1.1M14.6 5.4l1.1-1.1",
  moon: "M16.5 11.5A7 7 0 1 1 8.5 3.5a5.5 5.5 0 0 0 8 8z",
  auto: "M10 3a7 7 0 1 0 0 14zM10 3a7 7 0 0 1 0 14",
  alert: "M10 3.5l7 12.5H3zM10 8.5v3.5M10 14v.2",
  shield: "M10 3l6 2v4.5c0 3.5-2.4 6.2-6 7.5-3.6-1.3-6-4-6-7.5V5z",
  question: "M7.5 7.5a2.5 2.5 0 1 1 3.6 2.2c-.8.4-1.1.9-1.1 1.8M10 14.3v.2",
  minus: "M5 10h10",
  key: "M12.5 3.5a4 4 0 1 1-3.4 6.1L3.5 15.2v1.8H7v-2h2v-2l1.4-1.4",
};

export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 20 20");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("focusable", "false");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", PATHS[name]);
  svg.append(path);
  return svg;
}

/** A button. Without visible text, `label` is its name; it is its tooltip too. */
export function button({ label, text, icon: name, kind = "", onclick, ...rest }) {
  return h(
    "button",
    {
      type: "button",
      class: `button ${kind}`.trim(),
      "aria-label": text ? undefined : label,
      title: text ? undefined : label,
      on: { click: onclick ?? (() => {}) },
      ...rest,
    },
    name ? icon(name) : null,
    text ? h("span", {}, text) : null,
  );
}

// Characters that show nothing or turn the text around them: what somebody approves must be what they see.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb]|[\u{e0000}-\u{e0fff}]/gu;

/** Return `text` with invisible and direction-changing characters spelled out as code points. */
export function spelledOut(text) {
  return text.replace(UNSEEN, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
}

export function pretty(value) {
  return spelledOut(typeof value === "string" ? value : JSON.stringify(value, null, 2) ?? "");
}

const jobs = new Set();
let due = false;

/** Run `job` before the next frame is drawn, once however often it is asked for. */
export function nextFrame(job) {
  jobs.add(job);
  if (due) return;
  due = true;
  // A hidden page gets no frames.
  if (document.hidden) setTimeout(flush, 250);
  else requestAnimationFrame(flush);
}

function flush() {
  due = false;
  const now = [...jobs];
  jobs.clear();
  for (const job of now) job();
}

document.addEventListener("visibilitychange", () => {
  // What was waiting for a frame when the page was hidden must not wait until it is seen again.
  if (due && document.hidden) setTimeout(flush, 250);
});

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Pages that are not served over https, but for loopback, have no clipboard.
    const area = h("textarea", { class: "sr-only", readonly: true, "aria-hidden": "true", tabindex: "-1" });
    area.value = text;
    const before = document.activeElement;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    before?.focus?.();
    return done;
  }
}
