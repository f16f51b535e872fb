// Parts that show the present are fetched again and again, and the page says when it cannot.
//
//   <div id="live" data-refresh="/live/overview" data-every="2">     seconds; its content is exchanged
//
// An answer that is one element with the same id takes the part's place; without data-refresh it is the last one.
const ANSWER_MS = 20000;
const timers = new Map();
let heard = new Date();

function old() {
  const banner = document.getElementById("stale");
  banner.textContent = `The console does not answer: what you see is of ${heard.toLocaleTimeString()}.`;
  banner.hidden = false;
}

// A part that is exchanged between the press and the release of a button would take the click with it.
let pressed = false;
document.addEventListener("pointerdown", () => { pressed = true; });
for (const released of ["pointerup", "pointercancel"]) {
  document.addEventListener(released, () => setTimeout(() => { pressed = false; }, 0));
}

function exchange(part, text) {
  const made = document.createElement("template");
  made.innerHTML = text;
  const whole = made.content.firstElementChild;
  if (whole && whole.id && whole.id === part.id) {
    part.replaceWith(whole);
    return whole;
  }
  part.replaceChildren(made.content);
  return part;
}

async function refresh(part) {
  timers.delete(part);
  try {
    const answer = await fetch(part.dataset.refresh, { signal: AbortSignal.timeout(ANSWER_MS) });
    if (answer.status === 401) {
      location.assign("/login");
      return;
    }
    if (!answer.ok) throw new Error(answer.status);
    const text = await answer.text();
    if (!pressed) part = exchange(part, text);
    heard = new Date();
    document.getElementById("stale").hidden = true;
  } catch {
    old();
  }
  later(part);
}

// Nobody sees a hidden page: it waits until it is shown.
function later(part) {
  if (!part.dataset.refresh) return;
  const tick = () => { if (!document.hidden) refresh(part); };
  timers.set(part, setTimeout(tick, 1000 * part.dataset.every));
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) return;
  for (const [part, timer] of [...timers]) {
    clearTimeout(timer);
    refresh(part);
  }
});
for (const part of document.querySelectorAll("[data-refresh]")) later(part);
