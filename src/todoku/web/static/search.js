// Suggestions below the search box: what may follow in the text. The box is a plain form without them.
const box = document.getElementById("find");
if (box) {
  const list = Object.assign(document.createElement("ul"), {id: "suggestions", hidden: true});
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", box.getAttribute("aria-label"));
  box.after(list);
  for (const [name, value] of [["role", "combobox"], ["aria-autocomplete", "list"], ["aria-controls", list.id], ["aria-expanded", "false"]])
    box.setAttribute(name, value);
  let items = [], chosen = -1, timer = null, asked = null;

  const close = () => {
    list.hidden = true; chosen = -1;
    box.setAttribute("aria-expanded", "false");
    box.removeAttribute("aria-activedescendant");
  };
  const choose = (place) => {
    chosen = place;
    [...list.children].forEach((item, number) => item.setAttribute("aria-selected", String(number === place)));
    if (place < 0) return box.removeAttribute("aria-activedescendant");
    box.setAttribute("aria-activedescendant", list.children[place].id);
    list.children[place].scrollIntoView({block: "nearest"});
  };
  const take = (place) => {
    box.value = items[place].query + (/[.:]$/.test(items[place].word) ? "" : " ");
    close(); box.focus(); ask();
  };
  const show = () => {
    list.replaceChildren(...items.map((item, number) => {
      const row = Object.assign(document.createElement("li"), {id: "suggestion" + number});
      row.setAttribute("role", "option");
      row.append(Object.assign(document.createElement("b"), {textContent: item.word}), " ",
        Object.assign(document.createElement("span"), {textContent: item.about, className: "soft"}));
      row.addEventListener("pointerdown", (event) => { event.preventDefault(); take(number); });
      return row;
    }));
    choose(-1);
    list.hidden = !items.length;
    box.setAttribute("aria-expanded", String(!list.hidden));
  };
  const ask = async () => {
    asked?.abort();
    const mine = asked = new AbortController();
    const url = `${document.body.dataset.prefix}/suggestions?q=${encodeURIComponent(box.value)}`;
    try {
      const answer = await fetch(url, {headers: {Accept: "application/json"}, signal: mine.signal});
      if (!answer.ok) return close();
      items = (await answer.json()).items;
      if (document.activeElement === box) show();
    } catch { close(); } finally { if (asked === mine) asked = null; }
  };
  box.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(ask, 120); });
  box.addEventListener("blur", close);
  box.addEventListener("keydown", (event) => {
    if (event.isComposing) return;
    if (event.key === "Escape" && (!list.hidden || asked)) {  // on its way counts: Escape alone would empty the box
      event.preventDefault(); asked?.abort(); close();
    }
    else if (event.key === "ArrowDown" && list.hidden) { event.preventDefault(); ask(); }
    else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      const step = event.key === "ArrowDown" ? 1 : -1, number = items.length + 1;
      choose((chosen + 1 + step + number) % number - 1);
    } else if ((event.key === "Enter" || event.key === "Tab") && !list.hidden && chosen >= 0) { event.preventDefault(); take(chosen); }
  });
}
