// Editor of config files: `[data-config-editor]`.
//
// The text is checked by the daemon while it is typed; the errors and the difference are shown. It is
// saved after a confirmation, if it has no errors and the file was not changed meanwhile.

import { call, confirmed, toast } from './act.js';
import { ConfigForm } from './config-form.js';

const CHECK_MS = 500;
const byId = (id) => document.getElementById(id);
const NEW_WORKFLOW = '+workflow';
const [files, text, save, faults, diff, state, graph] =
  ['config-file', 'config-text', 'config-save', 'config-faults', 'config-diff', 'config-state', 'config-graph'].map(byId);
const forms = { agent: byId('agent-form'), workflow: byId('workflow-form') };
const asked = new URLSearchParams(location.search);

let known = [];
let workflowFolder = null;
// File that is edited: path, text and hash as they were read. Without a path, an agent or a workflow
// is added, as `adds` says.
let opened = { text: '', adds: 'agent' };
let checked = 0;
let timer;
const fields = new ConfigForm(byId('config-field-list'), {
  text: () => text.value,
  edit: (changed) => {
    text.value = changed;
    check();
  },
  fail: (error) => toast(error.message, error.hint, true),
});

const isNew = () => !opened.path;
const newForm = () => forms[opened.adds];
const newName = () => newForm().elements.name.value.trim();
const newPath = (name) => (opened.adds === 'agent' ? `agents/${name}.yaml` : `${workflowFolder}/${name}.yaml`);
const newText = () => (opened.adds === 'agent' ? agentText() : workflowText());
const opensWorkflow = () => (isNew() ? opened.adds === 'workflow' : Boolean(known.find((file) => file.path === opened.path)?.workflow));
const edit = () => {
  if (!isNew()) return { path: opened.path, hash: opened.hash, text: text.value };
  return { [opened.adds === 'agent' ? 'addAgent' : 'addWorkflow']: newName(), text: text.value };
};

// A JSON string is a YAML string, whatever it contains.
const quoted = (words) => JSON.stringify(words);

function workflowText() {
  const value = (name) => forms.workflow.elements[name].value.trim();
  const lines = [`name: ${value('name') || 'NAME'}`];
  if (value('description')) lines.push(`description: ${quoted(value('description'))}`);
  if (value('agent')) lines.push(`agent: ${value('agent')}`);
  lines.push('', 'phases:', `  - name: ${value('phase') || 'work'}`, '    prompt: |');
  lines.push(...(value('prompt') || 'Describe the work of this phase here.').split('\n').map((line) => `      ${line}`));
  if (forms.workflow.elements.gate.checked) lines.push('    approval_gate:', `      name: ${value('phase') || 'work'}-approved`);
  return `${lines.join('\n')}\n`;
}

function agentText() {
  const value = (name) => forms.agent.elements[name].value.trim();
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

function showCheck({ errors, warnings, changes, values, graph: drawing }) {
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
  showGraph(drawing);
  if (!isNew() && values && !text.readOnly) fields.show(values, opensWorkflow());
  byId('config-fields').hidden = isNew() || !byId('config-field-list').childElementCount;
}

// Drawing of the daemon, without its links: the phases are not listed on this page.
function showGraph(drawing) {
  byId('config-drawing').hidden = !drawing;
  const parsed = drawing ? new DOMParser().parseFromString(drawing, 'text/html').body : null;
  for (const link of parsed?.querySelectorAll('a') ?? []) link.replaceWith(...link.childNodes);
  graph.replaceChildren(...(parsed?.childNodes ?? []));
}

async function check() {
  const number = ++checked;
  save.disabled = true;
  if (isNew() && !newName()) {
    faults.replaceChildren();
    diff.replaceChildren();
    state.textContent = opened.adds === 'agent' ? 'The agent needs a name.' : 'The workflow needs a name.';
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

// Agent or workflow that a file alone defines, so that both can be removed together.
function owned(file) {
  if (!file || file.isFleet) return null;
  if (file.workflow) return { kind: 'workflow', name: file.workflow };
  return file.agents.length === 1 ? { kind: 'agent', name: file.agents[0] } : null;
}

async function open(path) {
  const adds = path === NEW_WORKFLOW ? 'workflow' : path ? null : 'agent';
  byId('config-form').hidden = adds !== 'agent';
  byId('config-workflow-form').hidden = adds !== 'workflow';
  byId('config-fields').hidden = true;
  fields.clear();
  showGraph(null);
  const file = known.find((one) => one.path === path);
  const item = owned(file);
  byId('config-removal').hidden = !item;
  byId('config-remove').textContent = `Remove the ${item?.kind ?? 'agent'}`;
  byId('config-agents').textContent = file?.agents.length ? `Agents: ${file.agents.join(', ')}` : file?.workflow ? `Workflow: ${file.workflow}` : '';
  if (adds) {
    opened = { text: '', adds };
    byId('config-path').textContent = newPath('NAME');
    text.value = newText();
    text.readOnly = false;
  } else {
    byId('config-path').textContent = path;
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
  const what = isNew() ? `Add the ${opened.adds} ${newName()}?` : `Save ${opened.path}?`;
  const lines = count === 1 ? '1 line changes' : `${count} lines change`;
  if (!(await confirmed(`${what} ${lines}, and the fleet loads the config at once.`, 'Save and load', false))) return;
  const path = isNew() ? newPath(newName()) : opened.path;
  if (!(await send(edit(), 'Saved and loaded.'))) return;
  await list();
  files.value = path;
  await open(path);
});

byId('config-remove').addEventListener('click', async () => {
  const item = owned(known.find((one) => one.path === opened.path));
  if (!item) return;
  if (!(await confirmed(`Remove the ${item.kind} ${item.name} from the config? Its file is moved to the trash.`, 'Remove it', true))) return;
  if (!(await send(item.kind === 'agent' ? { removeAgent: item.name } : { removeWorkflow: item.name }, `${item.name} was removed.`))) return;
  await list();
  files.value = '';
  await open('');
});

async function list() {
  const reply = await call('GET', '/api/v1/config/files');
  known = reply.files;
  workflowFolder = reply.workflowFolder;
  const options = known.map((file) => {
    const option = element('option', '', file.path);
    option.value = file.path;
    return option;
  });
  const [newAgent, newWorkflow] = files.options;
  newWorkflow.disabled = workflowFolder === null;
  files.replaceChildren(newAgent, newWorkflow, ...options);
}

files.addEventListener('change', () => open(files.value));
text.addEventListener('input', checkSoon);
for (const form of Object.values(forms)) {
  form.addEventListener('input', () => {
    if (!isNew()) return;
    byId('config-path').textContent = newPath(newName() || 'NAME');
    text.value = newText();
    checkSoon();
  });
  form.addEventListener('submit', (event) => event.preventDefault());
}
// Unsaved text is not lost by accident.
addEventListener('beforeunload', (event) => { if (!isNew() && text.value !== opened.text) event.preventDefault(); });

try {
  await list();
  const agent = asked.get('agent');
  const workflow = asked.get('workflow');
  const wanted = agent ? known.find((file) => file.agents.includes(agent))?.path
    : workflow ? known.find((file) => file.workflow === workflow)?.path : asked.get('file');
  const added = { workflow: NEW_WORKFLOW }[asked.get('new')] ?? (asked.has('new') ? '' : undefined);
  const first = wanted ?? added ?? known.find((file) => file.isFleet)?.path ?? '';
  files.value = first;
  await open(first);
} catch (error) {
  state.textContent = [error.message, error.hint].filter(Boolean).join(' · ');
}
