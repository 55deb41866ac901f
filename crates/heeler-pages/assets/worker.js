// Service worker of the dashboard: shows notices that arrive by Web Push, and opens their page.
//
// It handles no requests, so it stores nothing and changes no page.

self.addEventListener('install', () => self.skipWaiting());
self.addEventListener('activate', (event) => event.waitUntil(self.clients.claim()));

self.addEventListener('push', (event) => {
  let notice = {};
  // A browser demands a notification for each message, even for one that cannot be read.
  try { notice = event.data?.json() ?? {}; } catch { /* shown without its text */ }
  event.waitUntil(show(notice));
});

// Shows a notice. It replaces an earlier one with the same tag, unless that is newer.
async function show({ tag = 'heeler', title = 'Heeler', body = '', page = '/', closed = false, at = 0 }) {
  const shown = await self.registration.getNotifications({ tag });
  const newer = shown.find((one) => (one.data?.at ?? 0) > at);
  if (newer) ({ title, body } = newer);
  await self.registration.showNotification(title, {
    tag, body, data: newer?.data ?? { page, at },
    // An outcome, and a repetition, make no sound.
    silent: closed || Boolean(newer),
  });
}

self.addEventListener('notificationclick', (event) => {
  event.notification.close();
  event.waitUntil(open(event.notification.data?.page));
});

// Opens a page of the dashboard, in its window if one shows it already.
async function open(page) {
  const home = self.location.origin;
  let url = new URL('/', home);
  try { url = new URL(page ?? '/', home); } catch { /* the first page */ }
  if (url.origin !== home) url = new URL('/', home);
  const windows = await self.clients.matchAll({ type: 'window' });
  const there = windows.find((one) => one.url === url.href);
  if (there) return there.focus();
  try {
    return await self.clients.openWindow(url.href);
  } catch {
    // Some browsers open no window for an installed app; then the page is shown in its own.
    return windows[0]?.navigate(url.href);
  }
}
