// Keys for all pages: / search, j k rows, Enter opens, x selects, r runs again, g and a letter goes to a page, ? helps.
// Rows are those of table[data-rows]; `data-shortcut="r"` names what r presses on a page without rows.
let leader = 0, current = "";
const rows = () => [...document.querySelectorAll("table[data-rows] tbody tr[id]")];
const here = () => document.getElementById(current);

function mark(row, scroll) {
  rows().forEach((one) => one.removeAttribute("aria-selected"));
  if (!row) return;
  current = row.id;
  row.setAttribute("aria-selected", "true");
  if (scroll) {
    row.querySelector("[data-open]")?.focus({preventScroll: true});
    row.scrollIntoView({block: "nearest"});
  }
}

function move(step) {
  const all = rows(), at = all.findIndex((row) => row.id === current);
  mark(all[at < 0 ? (step > 0 ? 0 : all.length - 1) : Math.min(all.length - 1, Math.max(0, at + step))], true);
}

function runAgain() {
  const button = document.querySelector('#bulk button[value="replay"]');
  if (button) {
    if (!document.querySelector("input[form=bulk]:checked")) here()?.querySelector("input[form=bulk]")?.click();
    if (document.querySelector("input[form=bulk]:checked")) return button.click();
  }
  document.querySelector('[data-shortcut="r"]')?.click();
}

const keys = {
  "/": () => document.getElementById("find")?.focus(),
  j: () => move(1),
  k: () => move(-1),
  x: () => here()?.querySelector("input[type=checkbox]")?.click(),
  r: runAgain,
  g: () => { leader = Date.now(); },
  "?": () => document.getElementById("keys")?.showModal(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing || document.querySelector("dialog[open]")) return;
  const focus = event.target;
  if (focus.matches("textarea, select, [contenteditable], input:not([type=checkbox], [type=radio])")) {
    if (event.key === "Escape") focus.blur();
    return;
  }
  if (Date.now() - leader < 1500) {
    leader = 0;
    const link = document.querySelector(`nav.side a[data-key="${CSS.escape(event.key)}"]`);
    if (link) { event.preventDefault(); link.click(); return; }
  }
  if (!Object.hasOwn(keys, event.key)) return;
  event.preventDefault();
  keys[event.key]();
});
document.addEventListener("todoku:refreshed", () => mark(here(), false));
