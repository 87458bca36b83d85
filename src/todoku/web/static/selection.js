// Selecting rows: one checkbox for all, Shift for a range, the number of selected rows; live updates keep the selection.
const picked = new Set();
let last = null;
const boxes = () => [...document.querySelectorAll("input[form=bulk][name=id]")];

function show() {
  const all = boxes(), count = document.querySelector("[data-picked]");
  if (count) {
    count.dataset.none ??= count.textContent;
    count.textContent = picked.size ? count.dataset.picked.replace("#", picked.size) : count.dataset.none;
  }
  for (const top of document.querySelectorAll("[data-pick-all]")) {
    top.hidden = false;
    top.checked = all.length > 0 && all.every((box) => box.checked);
    top.indeterminate = !top.checked && all.some((box) => box.checked);
  }
}

function set(box, checked) {
  box.checked = checked;
  if (checked) picked.add(box.value); else picked.delete(box.value);
}

document.addEventListener("click", ({target, shiftKey}) => {
  if (target.matches?.("[data-pick-all]")) boxes().forEach((box) => set(box, target.checked));
  else if (target.matches?.("input[form=bulk][name=id]")) {
    const all = boxes(), from = all.findIndex((box) => box.value === last), to = all.indexOf(target);
    set(target, target.checked);
    if (shiftKey && from >= 0) all.slice(Math.min(from, to), Math.max(from, to) + 1).forEach((box) => set(box, target.checked));
    last = target.value;
  } else return;
  show();
});
document.addEventListener("todoku:refreshed", () => {
  const there = new Set(boxes().map((box) => box.value));
  for (const id of picked) if (!there.has(id)) picked.delete(id);
  boxes().forEach((box) => { box.checked = picked.has(box.value); });
  show();
});
boxes().forEach((box) => set(box, box.checked));
show();
