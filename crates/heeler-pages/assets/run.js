// A run of a workflow as it goes on: `<… data-run="/api/v1/runs/ID/stream">`. What it tells is looked
// at on the page, whose regions are fetched again.

import { connect, refreshSoon } from './live.js';

const page = document.querySelector('[data-run]');
const stream = page && connect((last) => `${page.dataset.run}?from=${last ? Number(last) + 1 : page.dataset.from}`, {
  row: () => refreshSoon(),
  status: () => refreshSoon(),
  end: () => { refreshSoon(); stream.close(); },
});
