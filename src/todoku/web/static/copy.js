// A button on each text that has data-copy; without a clipboard (plain HTTP) the text is selected instead.
for (const text of document.querySelectorAll("pre[data-copy]")) {
  const frame = document.createElement("div"), button = document.createElement("button");
  frame.className = "copied";
  button.type = "button";
  button.textContent = text.dataset.copy;
  text.replaceWith(frame);
  frame.append(text, button);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "✓";
      setTimeout(() => { button.textContent = text.dataset.copy; }, 1500);
    } catch { getSelection().selectAllChildren(text); }
  });
}
