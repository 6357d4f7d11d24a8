// Server-sent events over fetch: EventSource can neither send a token nor say where to go on after a reload.

/** Cuts a text that arrives in pieces into events `{id, event, data, retry}`. */
export class EventParser {
  constructor() {
    this.rest = "";
    this.fields = null;
    this.begun = false;
  }

  *feed(chunk) {
    if (!this.begun && chunk) {
      this.begun = true;
      if (chunk.charCodeAt(0) === 0xfeff) chunk = chunk.slice(1);
    }
    this.rest += chunk;
    let from = 0;
    for (;;) {
      const end = this.rest.slice(from).search(/\r\n|\r(?!$)|\n/);
      if (end < 0) break;
      const line = this.rest.slice(from, from + end);
      from += end + (this.rest.startsWith("\r\n", from + end) ? 2 : 1);
      const event = this._line(line);
      if (event) yield event;
    }
    this.rest = this.rest.slice(from);
  }

  _line(line) {
    if (line === "") {
      const { fields } = this;
      this.fields = null;
      return fields && fields.data !== undefined ? fields : null;
    }
    if (line[0] === ":") return null;
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value[0] === " ") value = value.slice(1);
    this.fields ??= {};
    if (name === "data") this.fields.data = this.fields.data === undefined ? value : `${this.fields.data}\n${value}`;
    else if (name === "id" || name === "event" || name === "retry") this.fields[name] = value;
    return null;
  }
}

/** Yield the events of a response, and `null` for whatever else shows that the connection lives. */
export async function* eventsOf(response) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  const parser = new EventParser();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield null;
      yield* parser.feed(decoder.decode(value, { stream: true }));
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
