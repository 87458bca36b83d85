// Keeps the live regions of a page ([data-live], each with an id) fresh: one event stream says when, one fetch brings
// the page, and each region is morphed into its new content, so that focus, scroll and selection stay.
// A region in which the viewer reads (pointer on [data-calm], focus in a form, selected text) waits.
const pulse = document.getElementById("pulse");
const regions = () => [...document.querySelectorAll("[data-live][id]")];
const POLL = 5000;
let stream = null, poll = null, busy = false, shown = "";

function say(state) {
  if (!pulse) return;
  pulse.dataset.state = state;
  pulse.textContent = state === "none" ? "" : pulse.dataset[state + "Text"];
}

function isRead(region) {
  const focus = document.activeElement;
  if (focus && region.contains(focus) && focus.matches("input:not([type=checkbox]), textarea, select")) return true;
  if (region.querySelector("details.act[open], dialog[open]")) return true;
  const selection = getSelection();
  if (selection && !selection.isCollapsed && region.contains(selection.anchorNode)) return true;
  return region.matches("[data-calm]:hover") || region.querySelector("[data-calm]:hover") !== null;
}

// The first row in sight, and where it is: a page that is scrolled down stays where it is read.
function anchor(region) {
  const seen = scrollY > 0 && [...region.querySelectorAll("tr[id], [data-anchor][id]")].find((one) => one.getBoundingClientRect().top >= 0);
  return seen ? {id: seen.id, top: seen.getBoundingClientRect().top} : null;
}

async function refresh() {
  const waiting = regions().filter((region) => !isRead(region));
  if (busy || !waiting.length) return;
  busy = true;
  try {
    const headers = {"X-Todoku-Live": "1", Accept: "text/html", ...(shown && {"If-None-Match": shown})};
    const response = await fetch(location.href, {headers, redirect: "error"});
    if (response.status === 304) return say("live");
    shown = "";
    if (!response.ok) return say("lost");
    const fresh = new DOMParser().parseFromString(await response.text(), "text/html");
    for (const region of waiting) {
      const next = fresh.getElementById(region.id);
      if (!next || !region.isConnected || region.isEqualNode(next)) continue;
      const kept = anchor(region);
      await htmx.swap({sourceElement: region, target: region, text: next.outerHTML, swap: "outerMorph"});
      const row = kept && document.getElementById(kept.id);
      if (row) scrollBy({top: row.getBoundingClientRect().top - kept.top, behavior: "instant"});
      document.dispatchEvent(new CustomEvent("todoku:refreshed", {detail: region.id}));
    }
    if (waiting.length === regions().length) shown = response.headers.get("ETag") || ""; // else one shows older content
    say("live");
  } catch { say("lost"); } finally { busy = false; }
}

function stop() {
  stream?.close();
  stream = null;
  clearInterval(poll);
  poll = null;
}

function start() {
  if (stream || poll || document.hidden || !regions().length) return;
  stream = new EventSource(document.body.dataset.prefix + "/live");
  stream.addEventListener("tick", refresh);
  stream.onopen = () => say("live");
  stream.onerror = () => {
    say("lost");
    if (stream.readyState === EventSource.CLOSED) { stop(); poll = setInterval(refresh, POLL); }
  };
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) { stop(); say("paused"); } else { start(); refresh(); }
});
if (regions().length) start(); else say("none");
