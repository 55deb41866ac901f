// Keyboard, colours and filters.
//
// `/` searches, `g` and a letter opens a page (`<a data-key="j">` in the navigation), `j` and `k`
// move through `[data-row]` elements, `?` shows this list, Ctrl+K opens the palette. Keys can be switched off, because they
// disturb speech input. `<form data-auto>` is sent when one of its choices changes.

const root = document.documentElement;
const help = document.getElementById('keys');
const kept = (key) => { try { return localStorage.getItem(key); } catch { return null; } };
const keep = (key, value) => {
  try { value === null ? localStorage.removeItem(key) : localStorage.setItem(key, value); } catch { /* not stored */ }
};

const THEMES = ['auto', 'light', 'dark'];
const switcher = document.getElementById('theme');
function theme() { return root.dataset.theme ?? 'auto'; }
function label() {
  if (!switcher) return;
  switcher.dataset.now = theme();
  switcher.querySelector('[data-word]').textContent = { auto: 'System', light: 'Light', dark: 'Dark' }[theme()];
}
function turn() {
  const next = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length];
  if (next === 'auto') delete root.dataset.theme; else root.dataset.theme = next;
  keep('heeler-theme', next === 'auto' ? null : next);
  label();
}
switcher?.addEventListener('click', turn);
label();

// On a narrow screen the navigation scrolls.
document.querySelector('nav [aria-current]')?.scrollIntoView({ block: 'nearest', inline: 'center' });

const toggle = document.getElementById('keys-on');
if (toggle) {
  toggle.checked = kept('heeler-keys') !== 'off';
  toggle.addEventListener('change', () => keep('heeler-keys', toggle.checked ? null : 'off'));
}

function walk(step) {
  const rows = [...document.querySelectorAll('[data-row]')].filter((row) => row.offsetParent);
  if (!rows.length) return;
  const at = rows.findIndex((row) => row === document.activeElement || row.contains(document.activeElement));
  const next = rows[at < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + step))];
  const target = next.matches('a, button') ? next : next.querySelector('a, button') ?? next;
  target.focus();
  next.scrollIntoView({ block: 'nearest' });
}

// The palette is loaded at its first use.
async function palette() { (await import('./palette.js')).open(); }
document.querySelector('[data-palette]')?.addEventListener('click', palette);
document.addEventListener('keydown', (event) => {
  if (event.key.toLowerCase() !== 'k' || !(event.ctrlKey || event.metaKey) || event.shiftKey || event.altKey) return;
  if (document.querySelector('dialog[open]')) return;
  event.preventDefault();
  palette();
});

let going = 0;
document.addEventListener('keydown', (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  if (kept('heeler-keys') === 'off') return;
  const target = event.target;
  if (target.isContentEditable || target.matches('input, textarea, select')) {
    if (event.key === 'Escape') target.blur();
    return;
  }
  if (document.querySelector('dialog[open]')) return;
  if (going && Date.now() - going < 1500) {
    going = 0;
    const link = document.querySelector(`nav a[data-key="${CSS.escape(event.key)}"]`);
    if (link) { event.preventDefault(); link.click(); }
    return;
  }
  const done = {
    g: () => { going = Date.now(); },
    '/': () => document.getElementById('q')?.focus(),
    '?': () => help?.showModal(),
    t: turn,
    j: () => walk(1),
    k: () => walk(-1),
  }[event.key];
  if (done) { event.preventDefault(); done(); }
});

// Arrow keys change a choice repeatedly: send the filter when they stop.
const REST_MS = 700;
let byKey = false;
let resting;
document.addEventListener('keydown', () => { byKey = true; });
document.addEventListener('pointerdown', () => { byKey = false; });
document.addEventListener('change', (event) => {
  const form = event.target.closest('form[data-auto]');
  if (!form || !event.target.matches('select, input[type=checkbox], input[type=radio]')) return;
  clearTimeout(resting);
  resting = setTimeout(() => form.requestSubmit(), byKey && event.target.matches('select') ? REST_MS : 0);
});

// Leave empty filters out of the URL.
document.addEventListener('submit', (event) => {
  if (!event.target.matches('form[data-auto]')) return;
  for (const field of event.target.elements) if (field.value === '') field.disabled = true;
});
