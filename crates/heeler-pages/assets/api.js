// Tries routes of the API: `<form data-try="METHOD /path/{name}">`.
//
// Fields with data-in="path" fill the path, those with data-in="query" the query string, and the
// field named `body` is the request body. The reply is shown unchanged.

const csrf = document.querySelector('meta[name="csrf"]')?.content;

function address(form, path) {
  const asked = new URLSearchParams();
  for (const field of form.querySelectorAll('input[data-in]')) {
    const value = field.value.trim();
    if (field.dataset.in === 'path') path = path.replace(`{${field.name}}`, encodeURIComponent(value));
    else if (value) asked.append(field.name, value);
  }
  const text = asked.toString();
  return text ? `${path}?${text}` : path;
}

async function send(form) {
  const [method, path] = form.dataset.try.split(' ');
  const headers = { accept: 'application/json' };
  const body = form.elements.body?.value;
  if (method !== 'GET') {
    headers['content-type'] = 'application/json';
    if (csrf) headers['x-heeler-csrf'] = csrf;
  }
  const began = performance.now();
  const reply = await fetch(address(form, path), { method, headers, body: method === 'GET' ? undefined : body });
  // A file may be too large for a page.
  if (reply.headers.has('content-disposition')) {
    await reply.body.cancel();
    return `${reply.status} ${reply.statusText}\nA file: ${reply.url}`;
  }
  const text = await reply.text();
  const took = Math.round(performance.now() - began);
  let shown = text;
  try { shown = JSON.stringify(JSON.parse(text), null, 2); } catch { /* shown unchanged */ }
  return `${reply.status} ${reply.statusText} (${took} ms)\n${shown}`;
}

for (const form of document.querySelectorAll('form[data-try]')) {
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    const out = form.querySelector('pre');
    out.hidden = false;
    try {
      out.firstElementChild.textContent = await send(form);
    } catch {
      out.firstElementChild.textContent = 'Heeler does not answer.';
    }
  });
}
