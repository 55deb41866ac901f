// Editor of config files: `[data-config-editor]`.
//
// The text is checked by the daemon while it is typed; the errors and the difference are shown. It is
// saved after a confirmation, if it has no errors and the file was not changed meanwhile.

import { call, confirmed, toast } from './act.js';

const CHECK_MS = 500;
const byId = (id) => document.getElementById(id);
const [files, text, save, faults, diff, state, form] =
  ['config-file', 'config-text', 'config-save', 'config-faults', 'config-diff', 'config-state', 'agent-form'].map(byId);
const asked = new URLSearchParams(location.search);

let known = [];
// File that is edited: path, text and hash as they were read. Without a path, an agent is added.
let opened = { text: '' };
let checked = 0;
let timer;

const agentName = () => form.elements.name.value.trim();
const isNew = () => !opened.path;
const edit = () => (isNew() ? { addAgent: agentName(), text: text.value } : { path: opened.path, hash: opened.hash, text: text.value });

// A JSON string is a YAML string, whatever it contains.
function agentText() {
  const value = (name) => form.elements[name].value.trim();
  const quoted = (words) => JSON.stringify(words);
  const lines = [`name: ${value('name') || 'NAME'}`];
  if (value('description')) lines.push(`description: ${quoted(value('description'))}`);
  lines.push(`working_directory: ${quoted(value('folder') || '..')}`);
  const prompt = value('prompt');
  if (prompt) lines.push('default_prompt: |', ...prompt.split('\n').map((line) => `  ${line}`));
  if (value('approvals')) lines.push(`approvals: ${value('approvals')}`);
  if (value('budget')) lines.push('budget:', `  job: ${Number(value('budget'))}`);
  if (value('cron')) lines.push('schedules:', '  main:', `    cron: ${quoted(value('cron'))}`);
  return `${lines.join('\n')}\n`;
}

function element(name, className, words) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (words !== undefined) made.textContent = words;
  return made;
}

function showCheck({ errors, warnings, changes }) {
  const item = (fault, kind) => {
    const line = element('li');
    line.append(element('strong', kind === 'error' ? 'failed' : '', kind), ` ${fault.file}:${fault.line}: ${fault.message}`);
    if (fault.help) line.append(element('span', 'muted', ` · ${fault.help}`));
    return line;
  };
  faults.replaceChildren(...errors.map((fault) => item(fault, 'error')), ...warnings.map((fault) => item(fault, 'warning')));
  const changed = changes.filter((file) => file.lines.length);
  diff.replaceChildren(...changed.flatMap((file) => {
    const lines = element('pre', 'code');
    lines.tabIndex = 0;
    for (const line of file.lines) lines.append(element('span', line.startsWith('+') ? 'added' : 'removed', `${line}\n`));
    return [element('p', 'small mono', file.path), lines];
  }));
  state.textContent = errors.length ? `${errors.length} ${errors.length === 1 ? 'error' : 'errors'}` : changed.length ? 'No errors.' : 'No changes.';
  save.disabled = errors.length > 0 || changed.length === 0;
}

async function check() {
  const number = ++checked;
  save.disabled = true;
  if (isNew() && !agentName()) {
    faults.replaceChildren();
    diff.replaceChildren();
    state.textContent = 'The agent needs a name.';
    return;
  }
  state.textContent = 'Checking…';
  try {
    const result = await call('POST', '/api/v1/config/check', edit());
    // A newer text is being checked.
    if (number === checked) showCheck(result);
  } catch (error) {
    if (number !== checked) return;
    state.textContent = [error.message, error.hint].filter(Boolean).join(' · ');
  }
}

function checkSoon() {
  clearTimeout(timer);
  save.disabled = true;
  timer = setTimeout(check, CHECK_MS);
}

async function open(path) {
  byId('config-form').hidden = Boolean(path);
  const file = known.find((one) => one.path === path);
  const owns = file && !file.isFleet && file.agents.length === 1;
  byId('config-removal').hidden = !owns;
  byId('config-agents').textContent = file?.agents.length ? `Agents: ${file.agents.join(', ')}` : '';
  byId('config-path').textContent = path || 'agents/NAME.yaml';
  if (!path) {
    opened = { text: '' };
    text.value = agentText();
    text.readOnly = false;
  } else {
    try {
      opened = await call('GET', `/api/v1/config/files/text?${new URLSearchParams({ path })}`);
      text.value = opened.text;
      text.readOnly = false;
    } catch (error) {
      opened = { path, text: '' };
      text.value = '';
      text.readOnly = true;
      faults.replaceChildren();
      diff.replaceChildren();
      state.textContent = [error.message, error.hint].filter(Boolean).join(' · ');
      return;
    }
  }
  check();
}

async function send(body, done) {
  try {
    const reply = await call('POST', '/api/v1/config/save', body);
    toast(done, (reply.changes ?? []).join(' · '));
    return true;
  } catch (error) {
    toast(error.message, error.hint, true);
    return false;
  }
}

save.addEventListener('click', async () => {
  const count = diff.querySelectorAll('.added, .removed').length;
  const what = isNew() ? `Add the agent ${agentName()}?` : `Save ${opened.path}?`;
  const lines = count === 1 ? '1 line changes' : `${count} lines change`;
  if (!(await confirmed(`${what} ${lines}, and the fleet loads the config at once.`, 'Save and load', false))) return;
  const added = isNew() && agentName();
  if (!(await send(edit(), 'Saved and loaded.'))) return;
  await list();
  const path = added ? `agents/${added}.yaml` : opened.path;
  files.value = path;
  await open(path);
});

byId('config-remove').addEventListener('click', async () => {
  const [name] = known.find((one) => one.path === opened.path)?.agents ?? [];
  if (!name) return;
  if (!(await confirmed(`Remove the agent ${name} from the config? Its file is moved to the trash.`, 'Remove it', true))) return;
  if (!(await send({ removeAgent: name }, `${name} was removed.`))) return;
  await list();
  files.value = '';
  await open('');
});

async function list() {
  const reply = await call('GET', '/api/v1/config/files');
  known = reply.files;
  const options = known.map((file) => {
    const option = element('option', '', file.path);
    option.value = file.path;
    return option;
  });
  files.replaceChildren(files.options[0], ...options);
}

files.addEventListener('change', () => open(files.value));
text.addEventListener('input', checkSoon);
form.addEventListener('input', () => {
  if (!isNew()) return;
  byId('config-path').textContent = `agents/${agentName() || 'NAME'}.yaml`;
  text.value = agentText();
  checkSoon();
});
form.addEventListener('submit', (event) => event.preventDefault());
// Unsaved text is not lost by accident.
addEventListener('beforeunload', (event) => { if (!isNew() && text.value !== opened.text) event.preventDefault(); });

try {
  await list();
  const agent = asked.get('agent');
  const wanted = agent ? known.find((file) => file.agents.includes(agent))?.path : asked.get('file');
  const first = wanted ?? (asked.has('new') ? '' : known.find((file) => file.isFleet)?.path ?? '');
  files.value = first;
  await open(first);
} catch (error) {
  state.textContent = [error.message, error.hint].filter(Boolean).join(' · ');
}
