// Sets the chosen theme before the page is drawn; without a choice the system's applies.
const chosen = localStorage.getItem("todoku-theme");
if (chosen) document.documentElement.dataset.theme = chosen;
addEventListener("DOMContentLoaded", () => {
  document.getElementById("theme")?.addEventListener("click", () => {
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const now = document.documentElement.dataset.theme || (dark ? "dark" : "light");
    const next = now === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = next;
    localStorage.setItem("todoku-theme", next);
  });
});
