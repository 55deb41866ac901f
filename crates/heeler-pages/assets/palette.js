// Command palette: Ctrl+K opens a list of pages, agents, schedules, jobs and commands.
//
// Loaded at its first use. Its entries come from the navigation of the page and from the API, each
// time it opens. An entry opens a page, or sends a request after a confirmation.

import { call, confirmed, toast } from './act.js';
import { refreshSoon } from './live.js';

const dialog = document.getElementById('palette');
const input = document.getElementById('palette-text');
const list = document.getElementById('palette-list');
const SHOWN_MAX = 12;
const canOperate = document.body.dataset.scope !== 'read';

let entries = [];
let matches = [];
let chosen = 0;

const path = (...parts) => `/${parts.map(encodeURIComponent).join('/')}`;
const page = (name, kind, href) => ({ name, kind, run: () => location.assign(href) });

function act(name, question, answer, route, go) {
  return {
    name, kind: 'command',
    async run() {
      if (!(await confirmed(question, answer, false))) return;
      try {
        const reply = await call('POST', route, {});
        if (go && reply.id) { location.assign(path(go, reply.id)); return; }
        toast(reply.message ?? 'Done.');
        refreshSoon();
      } catch (error) {
        toast(error.message, error.hint, true);
      }
    },
  };
}

function pages() {
  return [...document.querySelectorAll('nav a[data-key]')].map((link) => page(link.firstChild.textContent.trim(), 'page', link.href));
}

// A list that cannot be loaded leaves its entries out.
const load = async (route, build) => { try { return build(await call('GET', route)); } catch { return []; } };

function ofSchedule({ agent, name, enabled }) {
  const both = `${agent}/${name}`;
  const route = `/api/v1/schedules/${encodeURIComponent(agent)}/${encodeURIComponent(name)}`;
  const entry = [page(both, 'schedule', '/schedules')];
  if (!canOperate) return entry;
  const change = enabled ? 'disable' : 'enable';
  return [
    ...entry,
    act(`Run ${both} now`, `Start a job of ${both} now?`, 'Run it', `${route}/trigger`, 'jobs'),
    act(`${enabled ? 'Disable' : 'Enable'} ${both}`, `${enabled ? 'Disable' : 'Enable'} the schedule ${both}?`, 'Yes', `${route}/${change}`),
  ];
}

async function fill() {
  const found = await Promise.all([
    load('/api/v1/agents', (reply) => reply.agents.map((one) => page(one.name, 'agent', path('agents', one.name)))),
    load('/api/v1/schedules', (reply) => reply.schedules.flatMap(ofSchedule)),
    load('/api/v1/workflows', (reply) => reply.workflows.map((one) => page(one.name, 'workflow', path('workflows', one.name)))),
    load('/api/v1/jobs?limit=50', (reply) => reply.jobs.map((one) => page(`${one.title ?? one.agent} · ${one.id}`, 'job', path('jobs', one.id)))),
  ]);
  entries = [...pages(), ...found.flat()];
  show();
}

// Every character of the typed text must occur, in order; words and runs count more.
function score(text, typed) {
  let at = 0;
  let points = 0;
  let before = -2;
  for (const c of typed) {
    const next = text.indexOf(c, at);
    if (next < 0) return -1;
    points += next === before + 1 ? 8 : next === 0 || /[^a-z0-9]/.test(text[next - 1]) ? 5 : 1;
    before = next;
    at = next + 1;
  }
  return points - text.length / 100;
}

function show() {
  const typed = input.value.trim().toLowerCase();
  const scored = entries.map((entry) => [score(entry.name.toLowerCase(), typed), entry]).filter(([points]) => points > -1);
  if (typed) scored.sort(([a], [b]) => b - a);
  matches = scored.slice(0, SHOWN_MAX).map(([, entry]) => entry);
  if (typed) {
    const query = new URLSearchParams({ q: input.value.trim() });
    matches.push(page(`Search transcripts for “${input.value.trim()}”`, 'search', `/search?${query}`));
  }
  chosen = Math.min(chosen, Math.max(0, matches.length - 1));
  list.replaceChildren(...matches.map((entry, at) => {
    const item = document.createElement('li');
    item.id = `palette-${at}`;
    item.role = 'option';
    item.ariaSelected = String(at === chosen);
    const kind = document.createElement('span');
    kind.className = 'muted';
    kind.textContent = entry.kind;
    const name = document.createElement('span');
    name.className = 'cut grow';
    name.textContent = entry.name;
    item.append(name, kind);
    item.addEventListener('click', () => take(entry));
    return item;
  }));
  if (matches.length) input.setAttribute('aria-activedescendant', `palette-${chosen}`);
  else input.removeAttribute('aria-activedescendant');
  list.children[chosen]?.scrollIntoView({ block: 'nearest' });
}

function take(entry) {
  dialog.close();
  entry?.run();
}

input.addEventListener('input', () => { chosen = 0; show(); });
input.addEventListener('keydown', (event) => {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step && matches.length) {
    event.preventDefault();
    chosen = (chosen + step + matches.length) % matches.length;
    show();
  } else if (event.key === 'Enter') {
    event.preventDefault();
    take(matches[chosen]);
  }
});
// A click beside the dialog closes it.
dialog.addEventListener('click', (event) => { if (event.target === dialog) dialog.close(); });

export function open() {
  if (dialog.open) return;
  input.value = '';
  chosen = 0;
  entries = pages();
  show();
  dialog.showModal();
  input.focus();
  fill();
}
