// Notices in this browser: `<form data-push>` with a button, and a list of channels if there are several.
//
// [data-push-state] shows what is possible here. The list of browsers is a live region of the page.

import { call, toast } from './act.js';
import { refreshSoon } from './live.js';

const form = document.querySelector('form[data-push]');
const button = form.querySelector('button');
const state = form.querySelector('[data-push-state]');
const WORKER = '/worker.js';

// The id of a browser follows from its address; see `PushBrowser::id_of`.
async function idOf(endpoint) {
  const hash = new Uint8Array(await crypto.subtle.digest('SHA-256', new TextEncoder().encode(endpoint)));
  return `browser-${[...hash.slice(0, 6)].map((byte) => byte.toString(16).padStart(2, '0')).join('')}`;
}

function bytes(base64) {
  const text = atob(base64.replaceAll('-', '+').replaceAll('_', '/'));
  return Uint8Array.from(text, (char) => char.charCodeAt(0));
}

// Describes this browser, such as `Firefox on Android`.
function label() {
  const agent = navigator.userAgent;
  const find = (names) => names.find(([, mark]) => agent.includes(mark))?.[0];
  const name = find([['Edge', 'Edg'], ['Opera', 'OPR/'], ['Firefox', 'Firefox/'], ['Chrome', 'Chrome/'], ['Safari', 'Safari/']]);
  const system = find([['Android', 'Android'], ['iPhone', 'iPhone'], ['iPad', 'iPad'], ['Windows', 'Windows'], ['macOS', 'Mac OS'], ['Linux', 'Linux']]);
  return `${name ?? 'Browser'} on ${system ?? 'an unknown system'}`;
}

async function subscription() {
  const worker = await navigator.serviceWorker.getRegistration('/');
  return worker?.pushManager.getSubscription();
}

async function ask() {
  if (await Notification.requestPermission() !== 'granted') {
    throw Object.assign(new Error('The browser does not allow notifications.'),
      { hint: 'Allow them for this site in the settings of the browser.' });
  }
}

async function subscribe() {
  await ask();
  await call('POST', '/api/v1/browsers/key');
  const { publicKey } = await call('GET', '/api/v1/browsers');
  await navigator.serviceWorker.register(WORKER, { scope: '/' });
  const { pushManager } = await navigator.serviceWorker.ready;
  // One of another fleet, or of an earlier key, would be refused.
  await (await pushManager.getSubscription())?.unsubscribe();
  const made = await pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: bytes(publicKey) });
  const { endpoint, keys } = made.toJSON();
  const channel = form.elements.channel?.value;
  return call('POST', '/api/v1/browsers', { channel, label: label(), endpoint, keys });
}

// Stops the notices of this browser. The push service then refuses further ones.
async function stop(found) {
  const id = await idOf(found.endpoint);
  await found.unsubscribe();
  return call('DELETE', `/api/v1/browsers/${id}`);
}

// Returns the subscription of this browser, if the fleet knows it.
async function known() {
  const found = await subscription();
  if (!found) return undefined;
  const { browsers } = await call('GET', '/api/v1/browsers');
  const id = await idOf(found.endpoint);
  return browsers.some((one) => one.id === id) ? found : undefined;
}

async function show() {
  const found = await known().catch(() => undefined);
  form.dataset.push = found ? 'on' : 'off';
  button.textContent = found ? 'Stop notices in this browser' : 'Notify this browser';
  if (found) state.textContent = 'This browser receives notices.';
  else state.textContent = 'This browser receives no notices.';
}

async function act() {
  if (button.getAttribute('aria-busy') === 'true') return;
  button.setAttribute('aria-busy', 'true');
  try {
    const found = await known();
    const reply = found ? await stop(found) : await subscribe();
    toast(reply.message);
  } catch (error) {
    const hint = error.hint ?? (error.name === 'AbortError' ? 'Is the push service of the browser reachable?' : undefined);
    toast(error.message, hint, true);
  } finally {
    button.removeAttribute('aria-busy');
    await show();
    refreshSoon();
  }
}

if (isSecureContext && 'serviceWorker' in navigator && 'PushManager' in window && 'Notification' in window) {
  form.addEventListener('submit', (event) => { event.preventDefault(); act(); });
  button.disabled = false;
  show();
} else {
  state.textContent = isSecureContext
    ? 'This browser has no Web Push here. On an iPhone or iPad, add the dashboard to the home screen first.'
    : 'Open the dashboard by HTTPS, or on the machine of the daemon.';
}

// A browser that logs out receives nothing more.
document.querySelector('form[action="/logout"]')?.addEventListener('submit', async (event) => {
  const out = event.target;
  if (form.dataset.push !== 'on' || out.dataset.left) return;
  event.preventDefault();
  out.dataset.left = 'yes';
  try { const found = await known(); if (found) await stop(found); } catch { /* the login ends anyway */ }
  out.submit();
});
