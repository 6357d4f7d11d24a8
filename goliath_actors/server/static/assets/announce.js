// What a screen reader is told: whole sentences of an answer as they are finished, and each state once.

const PACE = 1200; // ms between two announcements, so that one does not cut off the other

export class Announcer {
  constructor(el) {
    this.el = el;
    this.queue = [];
    this.open = ""; // text of the answer that is no whole sentence yet
    this.told = ""; // what was announced of the answer
    this.timer = null;
  }

  say(text) {
    if (text) this.queue.push(text);
    if (this.timer === null) this._next();
  }

  stream(text) {
    this.open += text;
    const end = lastEnd(this.open);
    if (end === 0) return;
    const sentences = this.open.slice(0, end);
    this.open = this.open.slice(end);
    this.told += sentences;
    this.say(plain(sentences));
  }

  /** The answer's text was replaced. */
  restart(text) {
    this.open = this.told = "";
    if (text) this.say(plain(text));
    this.told = text;
  }

  finish(text) {
    if (this.told + this.open === text || this.told === text) this.say(plain(text.slice(this.told.length)));
    else this.say(plain(text));
    this.open = this.told = "";
  }

  clear() {
    this.queue = [];
    this.open = this.told = "";
  }

  _next() {
    this.timer = null;
    if (this.queue.length === 0) return;
    const text = this.queue.splice(0).join(" ").slice(-4000);
    // A text that is the same as the one before would not be announced.
    this.el.replaceChildren(Object.assign(document.createElement("p"), { textContent: text }));
    this.timer = setTimeout(() => this._next(), PACE);
  }
}

function lastEnd(text) {
  let end = 0;
  const found = /[.!?…。！？](?:["'”’)\]]*)(?=\s)|\n/gu;
  for (let match = found.exec(text); match; match = found.exec(text)) end = found.lastIndex;
  return end;
}

/** Leave out what marks a text up, and where its links lead. */
function plain(text) {
  return text
    .replace(/\]\([^)\s]{0,2000}\)/g, "")
    .replace(/^[\s|:-]+$|^\s*[-*+] (?:\[[ xX]\] )?/gm, " ")
    .replace(/[*_`#>|~[\]]+/g, "")
    .replace(/\s+/g, " ")
    .trim();
}
