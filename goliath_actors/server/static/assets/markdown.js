// Markdown of a model, made into elements. The text is never parsed as HTML: tags in it are shown as they are written.
// Every scan is linear in the text, or has a bound, so that no answer can freeze the page.

import { button, copyText, h } from "./dom.js";

const DEEPEST = 10; // of lists and quotes inside one another; deeper ones are shown as text
const LONGEST_URL = 2000;

// --- blocks ----------------------------------------------------------------------------------------------------------

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?=[ \t]|$)/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}>[ \t]?/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:([ \t]+)|$)/;
const DELIMITERS = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;

const blank = (line) => line.trim() === "";
const kindOf = (marker) => (marker.length > 1 ? marker.at(-1) : marker);
const startsTable = (lines, i) =>
  lines[i].includes("|") && i + 1 < lines.length && lines[i + 1].includes("-") && DELIMITERS.test(lines[i + 1]) &&
  cells(lines[i]).length === cells(lines[i + 1]).length;

function interrupts(lines, i) {
  const line = lines[i];
  const item = ITEM.exec(line);
  return (
    FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line) ||
    (item !== null && item[3] !== undefined && !/^\d/.test(item[2])) || /^ {0,3}1[.)] /.test(line) || startsTable(lines, i)
  );
}

/** Return the line after the block that begins at line `i`, which is not blank. */
function endOf(lines, i) {
  const fence = FENCE.exec(lines[i]);
  if (fence) {
    const mark = fence[1];
    let j = i + 1;
    for (; j < lines.length; j++) {
      const line = lines[j].trim();
      if (line.length >= mark.length && line === mark[0].repeat(line.length)) return j + 1;
    }
    return j;
  }
  if (HEADING.test(lines[i]) || RULE.test(lines[i])) return i + 1;
  if (QUOTE.test(lines[i])) {
    let j = i + 1;
    while (j < lines.length && QUOTE.test(lines[j])) j++;
    return j;
  }
  if (startsTable(lines, i)) {
    let j = i + 2;
    while (j < lines.length && !blank(lines[j]) && lines[j].includes("|")) j++;
    return j;
  }
  const item = ITEM.exec(lines[i]);
  if (item) return endOfList(lines, i, kindOf(item[2]), item[1].length);
  let j = i + 1;
  while (j < lines.length && !blank(lines[j]) && !interrupts(lines, j)) j++;
  return j;
}

function endOfList(lines, i, kind, indent) {
  let end = i + 1;
  let gap = false;
  for (let j = i + 1; j < lines.length; j++) {
    const line = lines[j];
    if (blank(line)) {
      gap = true;
      continue;
    }
    const deeper = line.search(/\S/) > indent + 1;
    const item = ITEM.exec(line);
    const sibling = item !== null && kindOf(item[2]) === kind && !RULE.test(line);
    if (!deeper && !sibling && (gap || item !== null || interrupts(lines, j))) break;
    gap = false;
    end = j + 1;
  }
  return end;
}

function blocksOf(lines, depth) {
  const found = [];
  for (let i = 0; i < lines.length; ) {
    if (blank(lines[i])) {
      i++;
      continue;
    }
    const end = endOf(lines, i);
    found.push(blockElement(lines.slice(i, end), depth));
    i = end;
  }
  return found;
}

function blockElement(lines, depth) {
  const first = lines[0];
  const fence = FENCE.exec(first);
  if (fence) {
    const last = lines.length > 1 ? lines.at(-1).trim() : "";
    const closed = last.length >= fence[1].length && last === fence[1][0].repeat(last.length);
    return codeBlock(lines.slice(1, closed ? -1 : undefined).join("\n"), fence[2].trim().split(/\s/)[0]);
  }
  const heading = HEADING.exec(first);
  // A page has one h1 already, so an answer's headings begin at h4, under the reader's "Assistant".
  if (heading) {
    const level = heading[1].length;
    return h(`h${Math.min(level + 3, 6)}`, { dir: "auto", class: `h${level}` }, inline(headingText(first.slice(heading[0].length))));
  }
  if (RULE.test(first)) return h("hr");
  if (depth < DEEPEST && QUOTE.test(first)) {
    return h("blockquote", { dir: "auto" }, blocksOf(lines.map((line) => line.replace(QUOTE, "")), depth + 1));
  }
  if (startsTable(lines, 0)) return table(lines);
  if (depth < DEEPEST && ITEM.test(first)) return list(lines, depth);
  return h("p", { dir: "auto" }, inline(lines.map((line) => line.trim()).join("\n")));
}

/** A heading's text without the marks that may close it. By hand: a pattern would look at each run of spaces again. */
function headingText(text) {
  const whole = text.trim();
  let end = whole.length;
  while (end > 0 && whole[end - 1] === "#") end--;
  if (end === 0) return "";
  return end < whole.length && /\s/.test(whole[end - 1]) ? whole.slice(0, end).trim() : whole;
}

function list(lines, depth) {
  const [, lead, marker] = ITEM.exec(lines[0]);
  const kind = kindOf(marker);
  const ordered = /^\d/.test(marker);
  const items = [];
  let loose = false;
  let gap = false;
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && kindOf(item[2]) === kind && item[1].length <= lead.length + 1) {
      if (gap && items.length > 0) loose = true;
      const width = item[0].length - Math.max(0, (item[3] ?? " ").length - 1);
      items.push({ width, lines: [line.slice(item[0].length)] });
    } else if (items.length > 0) {
      const { width, lines: own } = items.at(-1);
      own.push(line.slice(Math.min(Math.max(0, line.search(/\S|$/)), width)));
    }
    gap = blank(line);
  }
  const el = h(ordered ? "ol" : "ul", { dir: "auto" });
  if (ordered && parseInt(marker, 10) !== 1) el.setAttribute("start", String(parseInt(marker, 10)));
  for (const item of items) {
    const li = h("li", { dir: "auto" });
    const task = /^\[([ xX])\] /.exec(item.lines[0]);
    if (task) {
      item.lines[0] = item.lines[0].slice(4);
      li.className = "task";
      const box = h("input", { type: "checkbox", disabled: true, "aria-label": task[1] === " " ? "not done" : "done" });
      box.checked = task[1] !== " ";
      li.append(box);
    }
    for (const child of blocksOf(item.lines, depth + 1)) {
      if (!loose && child.tagName === "P") li.append(...child.childNodes);
      else li.append(child);
    }
    el.append(li);
  }
  return el;
}

function cells(line) {
  const found = [""];
  let text = line.trim();
  if (text.startsWith("|")) text = text.slice(1);
  if (text.endsWith("|") && !text.endsWith("\\|")) text = text.slice(0, -1);
  for (let i = 0; i < text.length; i++) {
    if (text[i] === "\\" && text[i + 1] === "|") found[found.length - 1] += text[++i];
    else if (text[i] === "|") found.push("");
    else found[found.length - 1] += text[i];
  }
  return found.map((cell) => cell.trim());
}

function table(lines) {
  const sides = cells(lines[1]).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "end") : ""));
  const row = (line, tag) =>
    h("tr", {}, cells(line).slice(0, sides.length).map((cell, i) =>
      h(tag, { dir: "auto", class: sides[i] || undefined, scope: tag === "th" ? "col" : undefined }, inline(cell))));
  return h("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table" },
    h("table", {}, h("thead", {}, row(lines[0], "th")), h("tbody", {}, lines.slice(2).map((line) => row(line, "td")))));
}

/** A block of code with its language and a button that copies it. */
export function codeBlock(text, language = "") {
  const name = language.slice(0, 30);
  const code = h("code", { dir: "ltr" }, text);
  const copy = button({
    text: "Copy", label: "Copy", icon: "copy", kind: "quiet small",
    onclick: async () => {
      const label = copy.querySelector("span");
      label.textContent = (await copyText(code.textContent)) ? "Copied" : "Press Ctrl+C";
      setTimeout(() => (label.textContent = "Copy"), 1600);
    },
  });
  copy.setAttribute("aria-label", name ? `Copy ${name} code` : "Copy code");
  return h("div", { class: "code" },
    h("div", { class: "code-head" }, h("span", { class: "code-name" }, name || "text"), copy),
    h("pre", { tabindex: "0", role: "region", "aria-label": name ? `Code, ${name}` : "Code" }, code));
}

// --- inside a block --------------------------------------------------------------------------------------------------

const PUNCTUATION = /[\p{P}\p{S}]/u;
const ESCAPABLE = /[!-/:-@[-`{-~]/;
const BARE = /https?:\/\/[^\s<>"'`\\^{}|[\]]+/iy;
const SPECIAL = /[\\`*_~[\]!<\n]|https?:\/\//gi;

/** Return `target` as an address that may be followed, or null. Only http, https and mailto are ever links. */
export function safeUrl(target) {
  if (target.length > LONGEST_URL) return null;
  let url;
  try {
    url = new URL(target); // without a base: an address relative to this page is none of a model's business
  } catch {
    return null;
  }
  if (url.protocol === "mailto:") return url;
  return (url.protocol === "https:" || url.protocol === "http:") && !url.username && !url.password ? url : null;
}

function link(url, children, shown) {
  const a = h("a", { href: url.href, rel: "noopener noreferrer nofollow", target: "_blank", title: url.href }, children);
  // A text that looks like one place and leads to another says where it leads.
  const looks = shown.toLowerCase().match(/[\p{L}\p{N}-]+(?:\.[\p{L}\p{N}-]+)+/u);
  const there = url.protocol === "mailto:" ? url.pathname.toLowerCase() : url.hostname.toLowerCase();
  if (looks && !there.includes(looks[0]) && !url.href.toLowerCase().startsWith(shown.trim().toLowerCase())) {
    return [a, h("span", { class: "host" }, ` (${there})`)];
  }
  return [a];
}

/** Return the nodes of one paragraph's text. */
export function inline(text) {
  const nodes = []; // {text} · {el: Node[], shown} · {mark, n, opens, closes}
  const brackets = []; // where a link may have begun: {at, image, live}
  const ticks = new Map(); // length of a run of backticks → where such runs begin, the next first
  let plain = 0;
  const push = (upTo) => upTo > plain && nodes.push({ text: text.slice(plain, upTo) });
  SPECIAL.lastIndex = 0;
  for (let i = 0; i < text.length; ) {
    SPECIAL.lastIndex = i;
    const found = SPECIAL.exec(text);
    if (!found) break;
    i = found.index;
    const c = text[i];
    let next = i + 1;
    let node = null;
    if (c === "\n") node = { el: [h("br")], shown: " " };
    else if (c === "\\" && i + 1 < text.length && ESCAPABLE.test(text[i + 1])) {
      node = { text: text[i + 1] };
      next = i + 2;
    } else if (c === "`") {
      while (text[next] === "`") next++;
      const n = next - i;
      const end = closingTicks(text, ticks, i, n);
      if (end === undefined) {
        i = next;
        continue;
      }
      const body = text.slice(next, end).replace(/\n/g, " ");
      const code = /^ .*\S.* $/.test(body) ? body.slice(1, -1) : body;
      node = { el: [h("code", { dir: "ltr" }, code)], shown: code };
      next = end + n;
    } else if (c === "*" || c === "_" || c === "~") {
      while (text[next] === c) next++;
      node = delimiter(text, i, next);
    } else if (c === "[" || (c === "!" && text[i + 1] === "[")) {
      next = c === "[" ? i + 1 : i + 2;
      push(i);
      plain = next;
      brackets.push({ at: nodes.length, image: c === "!", live: true });
      nodes.push({ text: text.slice(i, next) });
      i = next;
      continue;
    } else if (c === "]") {
      push(i);
      plain = next;
      const opener = brackets.pop();
      const target = opener?.live ? destination(text, next) : null;
      const url = target ? safeUrl(target.url) : null;
      if (!url) {
        nodes.push({ text: "]" });
        i = next;
        continue;
      }
      const inner = nodes.splice(opener.at).slice(1);
      const shown = inner.map((part) => part.text ?? part.shown ?? "").join("");
      // A picture would be a request to somebody else's server: its description becomes a link to it.
      const children = opener.image ? [`Image: ${shown || url.hostname}`] : emphasised(inner);
      nodes.push({ el: link(url, children, opener.image ? "" : shown), shown });
      if (!opener.image) for (const other of brackets) if (!other.image) other.live = false;
      i = plain = target.end;
      continue;
    } else if (c === "<") {
      const end = text.slice(i, i + LONGEST_URL).search(/[>\s]/);
      const inside = end > 1 && text[i + end] === ">" ? text.slice(i + 1, i + end) : "";
      const url = /^(?:https?:|mailto:)/i.test(inside) ? safeUrl(inside) : null;
      if (url) {
        node = { el: link(url, inside, inside), shown: inside };
        next = i + end + 1;
      }
    } else if (found[0].length > 1) {
      BARE.lastIndex = i;
      const raw = BARE.exec(text)?.[0] ?? "";
      const trimmed = trimUrl(raw);
      const url = /[\p{L}\p{N}_]$/u.test(text.slice(Math.max(0, i - 1), i)) || brackets.some((b) => b.live) ? null : safeUrl(trimmed);
      next = i + Math.max(trimmed.length, found[0].length);
      if (url) node = { el: link(url, trimmed, trimmed), shown: trimmed };
    }
    if (node) {
      push(i);
      nodes.push(node);
      plain = next;
    }
    i = next;
  }
  push(text.length);
  return emphasised(nodes);
}

/** Where the next run of `n` backticks behind `i` begins. All runs are found once, so that none is looked for twice. */
function closingTicks(text, ticks, i, n) {
  if (ticks.size === 0) {
    for (const { 0: run, index } of text.matchAll(/`+/g)) {
      if (!ticks.has(run.length)) ticks.set(run.length, []);
      ticks.get(run.length).push(index);
    }
    for (const places of ticks.values()) places.reverse();
  }
  const places = ticks.get(n);
  while (places?.length && places.at(-1) <= i) places.pop();
  return places?.at(-1);
}

/** What ends a sentence is no part of an address in it, nor is a bracket that was opened before it. */
function trimUrl(raw) {
  let end = Math.min(raw.length, LONGEST_URL);
  let open = 0;
  for (let i = 0; i < end; i++) open += raw[i] === "(" ? 1 : raw[i] === ")" ? -1 : 0;
  for (; end > 0; end--) {
    const c = raw[end - 1];
    if (c === ")" && open < 0) open++;
    else if (!/[.,:;!?*_~\]]/.test(c)) break;
  }
  return raw.slice(0, end);
}

/** Read `(address "title")` at `i`: where a link leads, and where its source ends. */
function destination(text, i) {
  if (text[i] !== "(") return null;
  const limit = Math.min(text.length, i + LONGEST_URL + 500);
  let j = i + 1;
  while (j < limit && text[j] === " ") j++;
  let url = "";
  if (text[j] === "<") {
    const end = text.indexOf(">", j);
    if (end < 0 || end > limit) return null;
    url = text.slice(j + 1, end);
    if (url.includes("\n")) return null;
    j = end + 1;
  } else {
    let depth = 0;
    const from = j;
    for (; j < limit && !/\s/.test(text[j]); j++) {
      if (text[j] === "(" && ++depth > 20) return null;
      else if (text[j] === ")" && depth-- === 0) break;
    }
    url = text.slice(from, j);
  }
  while (j < limit && /\s/.test(text[j])) j++;
  const quote = text[j];
  if (quote === '"' || quote === "'") {
    const end = text.indexOf(quote, j + 1);
    if (end < 0 || end > limit) return null;
    j = end + 1;
    while (j < limit && /\s/.test(text[j])) j++;
  }
  return text[j] === ")" ? { url, end: j + 1 } : null;
}

function delimiter(text, from, to) {
  const before = from === 0 ? " " : text[from - 1];
  const after = to >= text.length ? " " : text[to];
  const spaceBefore = /\s/.test(before);
  const spaceAfter = /\s/.test(after);
  const left = !spaceAfter && (!PUNCTUATION.test(after) || spaceBefore || PUNCTUATION.test(before));
  const right = !spaceBefore && (!PUNCTUATION.test(before) || spaceAfter || PUNCTUATION.test(after));
  const mark = text[from];
  const word = mark === "_";
  return {
    mark, n: to - from, shown: text.slice(from, to),
    opens: left && (!word || !right || PUNCTUATION.test(before)) && (mark !== "~" || to - from === 2),
    closes: right && (!word || !left || PUNCTUATION.test(after)) && (mark !== "~" || to - from === 2),
  };
}

/** Match the marks of emphasis, and return what is to be shown. */
function emphasised(nodes) {
  const stack = []; // each: an opening mark and what has come since it
  let current = [];
  const waiting = { "*": 0, _: 0, "~": 0 };
  const give = (node) => current.push(...(node.el ?? [document.createTextNode(node.text ?? "")]));
  const drop = () => {
    const { mark, n, outer } = stack.pop();
    waiting[mark]--;
    outer.push(document.createTextNode(mark.repeat(n)), ...current);
    current = outer;
  };
  for (const node of nodes) {
    if (!node.mark) {
      give(node);
      continue;
    }
    let n = node.n;
    while (node.closes && n > 0 && waiting[node.mark] > 0) {
      while (stack.at(-1).mark !== node.mark) drop();
      const opener = stack.at(-1);
      const width = opener.n >= 2 && n >= 2 ? 2 : 1;
      const el = h(node.mark === "~" ? "del" : width === 2 ? "strong" : "em", {}, current);
      opener.n -= width;
      n -= width;
      if (opener.n === 0) {
        stack.pop();
        waiting[node.mark]--;
        opener.outer.push(el);
        current = opener.outer;
      } else current = [el];
    }
    if (n === 0) continue;
    if (node.opens && stack.length < 200) {
      stack.push({ mark: node.mark, n, outer: current });
      waiting[node.mark]++;
      current = [];
    } else current.push(document.createTextNode(node.mark.repeat(n)));
  }
  while (stack.length) drop();
  return current;
}

// --- a text that grows -----------------------------------------------------------------------------------------------

/** Shows a text that may still grow. Only the block that is being written is made again. */
export class Markdown {
  constructor(el) {
    this.el = el;
    this.text = "";
    this.done = []; // of each block: {from, node}
    this.code = null; // the open fence, which grows in place
  }

  set(text) {
    if (text === this.text) return;
    const grown = text.startsWith(this.text);
    if (!grown) {
      this.done = [];
      this.el.replaceChildren();
    }
    this.text = text;
    const last = this.done.pop();
    const from = last?.from ?? 0;
    const source = text.slice(from).replace(/\r\n?/g, "\n");
    const lines = source.split("\n");
    if (last && this._growsCode(last, lines)) {
      this.done.push(last);
      return;
    }
    last?.node.remove();
    // Offsets are counted in the text as it came: with carriage returns in it, start over.
    const exact = source.length === text.length - from;
    let at = from;
    for (let i = 0; i < lines.length; ) {
      if (blank(lines[i])) {
        at += lines[i++].length + 1;
        continue;
      }
      const end = endOf(lines, i);
      const node = blockElement(lines.slice(i, end), 0);
      this.el.append(node);
      this.done.push({ from: at, node });
      for (; i < end; i++) at += lines[i].length + 1;
    }
    if (!exact) this._rejoin();
  }

  _rejoin() {
    // Rare: keep no offsets, so that the next change makes everything again.
    this.text = "\u0000";
    this.done = [];
  }

  _growsCode(last, lines) {
    if (!last.node.classList.contains("code") || endOf(lines, 0) !== lines.length) return false;
    const fence = FENCE.exec(lines[0]);
    if (!fence) return false;
    const end = lines.at(-1).trim();
    if (lines.length > 1 && end.length >= fence[1].length && end === fence[1][0].repeat(end.length)) return false;
    const name = fence[2].trim().split(/\s/)[0].slice(0, 30) || "text";
    if (last.node.querySelector(".code-name").textContent !== name) return false;
    const code = last.node.querySelector("code");
    const text = lines.slice(1).join("\n");
    const had = code.textContent;
    if (had && text.startsWith(had) && code.firstChild?.nodeType === Node.TEXT_NODE) code.firstChild.appendData(text.slice(had.length));
    else code.textContent = text;
    return true;
  }
}
