// Actions: `<button data-action="POST /api/v1/…">` and `<form data-action="…">`.
//
// data-body     request body as JSON; a form sends its non-empty fields
// data-under    key that holds the fields of a form
// data-confirm  question to confirm first; data-danger marks it as destructive
// data-done     message after success
// data-go       page to open then; {id} comes from the reply
// data-show     id of the element that shows field data-field of the reply
// Without data-go the live regions of the page are fetched again.

import { refreshSoon } from './live.js';

const csrf = document.querySelector('meta[name="csrf"]')?.content;
const toasts = document.getElementById('toasts');
const TOAST_MS = 6000;

// Shows a message at the edge of the page. Errors stay until closed.
export function toast(text, hint, wrong = false) {
  const box = document.createElement('div');
  box.className = wrong ? 'toast toast-wrong' : 'toast';
  const line = document.createElement('p');
  line.textContent = text;
  box.append(line);
  if (hint) {
    const more = document.createElement('p');
    more.className = 'hint';
    more.textContent = hint;
    box.append(more);
  }
  const close = document.createElement('button');
  close.type = 'button';
  close.className = 'button quiet';
  close.setAttribute('aria-label', 'Dismiss');
  close.textContent = '✕';
  close.onclick = () => box.remove();
  box.append(close);
  const region = toasts?.querySelector(wrong ? '[role=alert]' : '[role=status]');
  region?.append(box);
  if (!wrong) setTimeout(() => box.remove(), TOAST_MS);
}

// Idempotency key: a request that is sent twice is executed once.
function key() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return [...bytes].map((byte) => byte.toString(16).padStart(2, '0')).join('');
}

// Calls the API; returns the reply, or throws an Error with message and `hint`.
export async function call(method, path, body) {
  const headers = { accept: 'application/json' };
  if (method !== 'GET') {
    headers['content-type'] = 'application/json';
    headers['idempotency-key'] = key();
    if (csrf) headers['x-heeler-csrf'] = csrf;
  }
  let reply;
  try {
    reply = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch {
    throw Object.assign(new Error('Heeler does not answer.'), { hint: 'Is the daemon running?' });
  }
  const text = await reply.text();
  let data = {};
  try { data = text ? JSON.parse(text) : {}; } catch { /* the status tells */ }
  if (reply.ok) return data;
  const error = new Error(data.detail ?? `The request was refused (${reply.status}).`);
  throw Object.assign(error, { hint: data.hint, status: reply.status });
}

// Asks for confirmation; resolves to a boolean.
export function confirmed(question, answer, danger) {
  const dialog = document.getElementById('confirm');
  if (!dialog) return Promise.resolve(window.confirm(question));
  dialog.querySelector('[data-question]').textContent = question;
  const yes = dialog.querySelector('button[value=yes]');
  yes.textContent = answer;
  yes.classList.toggle('danger', danger);
  dialog.returnValue = 'no';
  dialog.showModal();
  return new Promise((done) => {
    dialog.addEventListener('close', () => done(dialog.returnValue === 'yes'), { once: true });
  });
}

function fields(form) {
  const body = form.dataset.body ? JSON.parse(form.dataset.body) : {};
  for (const element of form.elements) {
    if (!element.name || element.disabled) continue;
    if (element.type === 'checkbox') { if (element.checked) body[element.name] = true; continue; }
    if (element.type === 'radio' && !element.checked) continue;
    if (element.value === '') continue;
    body[element.name] = element.type === 'number' ? Number(element.value) : element.value;
  }
  if (form.dataset.under) return { [form.dataset.under]: body };
  return body;
}

async function act(element, submitter) {
  const { action, confirm, done, go, show } = { ...element.dataset, ...submitter?.dataset };
  const [method, path] = action.split(' ');
  const given = element.matches('form') ? fields(element) : element.dataset.body && JSON.parse(element.dataset.body);
  const extra = submitter?.dataset.body ? JSON.parse(submitter.dataset.body) : {};
  const body = method === 'DELETE' && !given ? undefined : { ...given, ...extra };
  const button = submitter ?? element;
  const danger = 'danger' in element.dataset;
  if (confirm && !(await confirmed(confirm, button.dataset.answer ?? button.textContent.trim(), danger))) return;
  if (button.getAttribute('aria-busy') === 'true') return;
  button.setAttribute('aria-busy', 'true');
  try {
    const reply = await call(method, path, body);
    if (go) { location.assign(go.replace('{id}', encodeURIComponent(reply.id ?? ''))); return; }
    if (show) {
      const box = document.getElementById(show);
      box.querySelector('[data-value]').textContent = reply[element.dataset.field] ?? '';
      box.hidden = false;
      box.focus();
    }
    toast(done ?? reply.message ?? 'Done.');
    if (element.matches('form')) element.reset();
    element.dispatchEvent(new CustomEvent('heeler:done', { bubbles: true, detail: reply }));
    refreshSoon();
  } catch (error) {
    toast(error.message, error.hint, true);
  } finally {
    button.removeAttribute('aria-busy');
  }
}

document.addEventListener('click', (event) => {
  const button = event.target.closest('button[data-action]');
  if (!button || (button.type === 'submit' && button.form)) return;
  event.preventDefault();
  act(button);
});

document.addEventListener('submit', (event) => {
  const form = event.target;
  if (!form.matches('form[data-action]')) return;
  event.preventDefault();
  act(form, event.submitter);
});

// Ctrl+Enter sends a `<form data-send-key>`.
document.addEventListener('keydown', (event) => {
  if (event.key !== 'Enter' || !(event.ctrlKey || event.metaKey)) return;
  const form = event.target.closest?.('form[data-send-key]');
  if (form) { event.preventDefault(); form.requestSubmit(); }
});

// `<button data-copy>` copies the text of the element with that id.
document.addEventListener('click', async (event) => {
  const button = event.target.closest('button[data-copy]');
  if (!button) return;
  try {
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
    toast('Copied.');
  } catch {
    toast('The browser does not allow copying here.', 'Select the text and copy it.', true);
  }
});

// `<button data-open>` opens the dialog with that id.
document.addEventListener('click', (event) => {
  const button = event.target.closest('button[data-open]');
  if (button) document.getElementById(button.dataset.open)?.showModal();
});
