// Updates times: `<time data-rel datetime>` is relative, `<time data-since datetime>` counts up.
// The title has the exact time.

const UNITS = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];

// Formats seconds: 42 s, 5 min, 3 h, 2 d.
export function span(seconds) {
  const s = Math.max(0, Math.round(seconds));
  const [size, unit] = UNITS.find(([size]) => s >= size) ?? [1, 's'];
  return `${Math.floor(s / size)} ${unit}`;
}

// Formats seconds as a clock: 1:05, 2:01:09.
export function clock(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  const two = (n) => String(n).padStart(2, '0');
  const [h, m] = [Math.floor(s / 3600), Math.floor(s / 60) % 60];
  return h ? `${h}:${two(m)}:${two(s % 60)}` : `${m}:${two(s % 60)}`;
}

function say(element, now) {
  const at = Date.parse(element.dateTime);
  if (Number.isNaN(at)) return;
  const seconds = (now - at) / 1000;
  let text;
  if ('since' in element.dataset) text = clock(seconds);
  else if (Math.abs(seconds) < 1) text = 'now';
  else text = seconds > 0 ? `${span(seconds)} ago` : `in ${span(-seconds)}`;
  if (element.textContent !== text) element.textContent = text;
  if (!element.dataset.local) {
    element.title = new Date(at).toLocaleString();
    element.dataset.local = '1';
  }
}

// Use the server's clock: the local one may be wrong.
const told = Date.parse(document.querySelector('meta[name="now"]')?.content ?? '');
let ahead = Number.isNaN(told) ? 0 : Date.now() - told;

export function setNow(text) {
  const at = Date.parse(text ?? '');
  if (!Number.isNaN(at)) ahead = Date.now() - at;
}

export function tick(root = document) {
  const now = Date.now() - ahead;
  for (const element of root.querySelectorAll('time[data-rel], time[data-since]')) say(element, now);
}

tick();
setInterval(() => document.hidden || tick(), 1000);
document.addEventListener('visibilitychange', () => document.hidden || tick());
