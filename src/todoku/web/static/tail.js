// The live tail. It holds events back while the viewer reads: pointer or focus in the list, text selected, tab hidden,
// or the button. What it holds is bounded; what it drops is counted.
const table = document.getElementById("tail"), button = document.getElementById("hold"), held = document.getElementById("held");
const SHOWN = 300, HELD = 1000;
if (table) {
  const rows = table.tBodies[0];
  let waiting = [], dropped = 0, cut = false, pressed = false;
  const seen = new Set([...rows.rows].map((row) => row.dataset.mark));
  const isNew = (event) => {
    const mark = event.what + " " + event.mark;
    if (seen.has(mark)) return false;
    seen.add(mark);
    if (seen.size > 4 * HELD) seen.delete(seen.values().next().value);
    return true;
  };

  const isRead = () => {
    const selection = getSelection();
    return pressed || document.hidden || table.matches(":hover") || table.contains(document.activeElement) ||
      (selection && !selection.isCollapsed && table.contains(selection.anchorNode));
  };
  const cell = (text, name = "") => Object.assign(document.createElement("td"), {textContent: text ?? "", className: name});
  const clean = (text) => (text ?? "").replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g,
    (character) => "\\u" + character.charCodeAt(0).toString(16).padStart(4, "0"));
  function row(event) {
    const line = document.createElement("tr"), when = document.createElement("time"), at = cell("");
    when.dateTime = event.at; when.textContent = event.at.slice(11, 19); at.append(when);
    const what = cell(""), known = ["succeeded", "failed", "aborted"].includes(event.what);
    what.append(Object.assign(document.createElement("span"), {className: "status" + (known ? " " + event.what : ""), textContent: clean(event.what)}));
    const number = cell("", "number id");
    if (event.delivery_id) number.append(Object.assign(document.createElement("a"), {href: table.dataset.deliveries + event.delivery_id, textContent: event.delivery_id}));
    line.append(at, what, number, cell(clean(event.topic), "break"), cell(clean(event.destination), "break"), cell(clean(event.told), "why"));
    return line;
  }
  function say() {
    const number = (count) => count.toLocaleString("en");
    held.textContent = [
      waiting.length ? held.dataset.held.replace("{number}", number(waiting.length)) : "",
      dropped ? held.dataset.dropped.replace("{number}", number(dropped)) : "",
      cut ? held.dataset.cut : "",
    ].filter(Boolean).join(" · ");
    button.textContent = pressed ? button.dataset.go : button.dataset.hold;
    button.setAttribute("aria-pressed", String(pressed));
  }
  function flush() {
    if (waiting.length && !isRead()) {
      rows.prepend(...waiting.reverse().map(row));
      waiting = [];
      while (rows.rows.length > SHOWN) rows.lastElementChild.remove();
    }
    say();
  }
  const stream = new EventSource(table.dataset.from);
  stream.addEventListener("events", (message) => {
    const batch = JSON.parse(message.data);
    dropped += batch.dropped;
    cut ||= batch.cut;
    waiting.push(...batch.items.filter(isNew));
    if (waiting.length > HELD) { dropped += waiting.length - HELD; waiting = waiting.slice(-HELD); }
    flush();
  });
  button.hidden = false;
  button.addEventListener("click", () => { pressed = !pressed; if (!pressed) { dropped = 0; cut = false; } flush(); });
  table.addEventListener("pointerleave", () => setTimeout(flush));
  table.addEventListener("focusout", () => setTimeout(flush));
  document.addEventListener("visibilitychange", flush);
  document.addEventListener("selectionchange", () => { if (waiting.length) flush(); });
}
