// Streams of events, and regions of a page that follow them.
//
// `connect(url, events)` listens until it is closed. It reconnects after every loss, shows the
// connection state, and disconnects while the page is hidden: a browser has only six connections
// for all tabs of a site.
//
// `<… id data-live>` is a region that is fetched again when the fleet changes. A page with
// `<main data-poll="2000">` is also fetched at that interval while it is visible.

import { tick, setNow } from './time.js';

const RETRY_MS = [500, 1000, 2000, 5000, 10000];
const WORDS = { live: 'Live', wait: 'Connecting…', lost: 'Connection lost. Trying again…' };

const chip = document.getElementById('live');
const states = new Map();

// Shows the worst state of all streams, and only if it lasts.
let shown;
let settle;
function show() {
  const all = [...states.values()];
  const state = all.includes('lost') ? 'lost' : all.includes('wait') ? 'wait' : 'live';
  clearTimeout(settle);
  settle = setTimeout(() => {
    if (!chip || state === shown) return;
    shown = state;
    chip.dataset.state = state;
    chip.lastElementChild.textContent = WORDS[state];
  }, state === 'live' ? 0 : 1500);
}

// Listens to a stream. `url` may be a function of the last event id; `events` maps event names to
// functions of the data, which is parsed unless `raw`.
export function connect(url, events, { raw = false } = {}) {
  const key = Symbol('stream');
  let source = null;
  let last = '';
  let tries = 0;
  let timer = 0;
  let closed = false;

  const tell = (state) => { states.set(key, state); show(); };
  const stop = () => {
    clearTimeout(timer);
    source?.close();
    source = null;
  };
  const open = () => {
    if (closed || source || document.hidden) return;
    tell(tries ? 'lost' : 'wait');
    source = new EventSource(typeof url === 'function' ? url(last) : url);
    source.onopen = () => { tries = 0; tell('live'); };
    source.onerror = () => {
      // EventSource gives up after an error reply; try again.
      stop();
      const wait = RETRY_MS[Math.min(tries++, RETRY_MS.length - 1)];
      tell('lost');
      timer = setTimeout(open, wait);
    };
    for (const [name, heard] of Object.entries(events)) {
      source.addEventListener(name, (event) => {
        if (event.lastEventId) last = event.lastEventId;
        heard(raw ? event.data : JSON.parse(event.data), event.lastEventId);
      });
    }
  };
  const look = () => (document.hidden ? stop() : open());
  document.addEventListener('visibilitychange', look);
  // Retry at once when the page is visible or the network is back.
  const hurry = () => { if (!source && !document.hidden) { clearTimeout(timer); open(); } };
  const HURRY = ['focus', 'online'];
  for (const name of HURRY) addEventListener(name, hurry);
  open();
  return {
    close() {
      closed = true;
      document.removeEventListener('visibilitychange', look);
      for (const name of HURRY) removeEventListener(name, hurry);
      stop();
      states.delete(key);
      show();
    },
  };
}

// The last HTML from the server, without relative times.
const still = (html) => html.replace(/(<time\b[^>]*>)[^<]*/g, '$1');
const seen = new Map();
const regions = () => document.querySelectorAll('[data-live][id]');
for (const region of regions()) seen.set(region.id, still(region.innerHTML));

// Describes the focused element, so that its successor gets the focus.
function mark(element) {
  for (const name of ['id', 'data-action', 'href']) {
    const value = element.getAttribute(name);
    if (value) return `[${name}="${CSS.escape(value)}"]`;
  }
  return null;
}

function replace(region, fresh) {
  const html = still(fresh.innerHTML);
  if (seen.get(region.id) === html) return;
  const active = region.contains(document.activeElement) ? document.activeElement : null;
  // Keep typed text, open dialogs and selections.
  if (active?.matches('input, textarea, select') || region.querySelector('dialog[open]')) return;
  const opened = [...region.querySelectorAll('details[open][id]')].map((one) => one.id);
  const fields = [...region.querySelectorAll('input[id], textarea[id]')];
  const typed = fields.filter((one) => one.value !== one.defaultValue).map((one) => [one.id, one.value]);
  seen.set(region.id, html);
  region.replaceChildren(...fresh.childNodes);
  for (const id of opened) document.getElementById(id)?.setAttribute('open', '');
  for (const [id, value] of typed) {
    const field = document.getElementById(id);
    if (field) field.value = value;
  }
  const again = active && mark(active);
  if (again) region.querySelector(again)?.focus({ preventScroll: true });
}

// Polls at the interval that the page asks for, which may change.
let poll = 0;
let poller = 0;
function polled(page) {
  const wanted = Number(page.querySelector('main')?.dataset.poll) || 0;
  if (wanted === poll) return;
  poll = wanted;
  clearInterval(poller);
  if (poll) poller = setInterval(() => document.hidden || refreshSoon(), poll);
}

let fetching = false;
let stale = false;
export async function refresh() {
  if (fetching || document.hidden) { stale = true; return; }
  fetching = true;
  stale = false;
  try {
    const reply = await fetch(location.href, { headers: { accept: 'text/html' } });
    if (reply.redirected) { location.reload(); return; }
    if (!reply.ok) return;
    const page = new DOMParser().parseFromString(await reply.text(), 'text/html');
    setNow(page.querySelector('meta[name="now"]')?.content);
    for (const region of regions()) {
      const fresh = page.getElementById(region.id);
      if (fresh) replace(region, fresh);
    }
    polled(page);
    tick();
    document.dispatchEvent(new CustomEvent('heeler:refreshed'));
  } catch { /* the stream reports the loss */ }
  finally { fetching = false; }
}

// At most one fetch per second.
const BETWEEN_MS = 1000;
let planned = 0;
let refreshed = 0;
export function refreshSoon() {
  if (planned) return;
  planned = setTimeout(async () => {
    planned = 0;
    refreshed = Date.now();
    await refresh();
  }, Math.max(0, refreshed + BETWEEN_MS - Date.now()));
}

document.addEventListener('visibilitychange', () => { if (!document.hidden && stale) refreshSoon(); });
addEventListener('focusout', () => { if (stale) refreshSoon(); });

// Shows the activity; returns true if it changed.
function counts(fleet) {
  let news = false;
  for (const element of document.querySelectorAll('[data-count]')) {
    const value = fleet[element.dataset.count];
    if (value === undefined || element.textContent === String(value)) continue;
    news = true;
    element.textContent = value;
    element.parentElement.hidden = value === 0;
  }
  // The title of a background tab shows open questions.
  const title = document.title.replace(/^\(\d+\) /, '');
  document.title = fleet.approvals ? `(${fleet.approvals}) ${title}` : title;
  return news;
}

if (document.body.dataset.stream) {
  let first = true;
  connect(document.body.dataset.stream, {
    fleet(data) {
      // The first event usually repeats the content of the page.
      const news = counts(data) || !first;
      first = false;
      if (news && regions().length) refreshSoon();
    },
  });
  polled(document);
}
