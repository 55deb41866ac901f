// Form for the values of a config file, beside its text.
//
// Each change of a field is made in the text by the daemon, which keeps comments. The form shows the
// values of the text as it was checked last.

import { call } from './act.js';

const AGENT_FIELDS = [
  { key: ['description'], label: 'Purpose' },
  { key: ['model'], label: 'Model' },
  { key: ['working_directory'], label: 'Working directory, relative to the file' },
  { key: ['default_prompt'], label: 'Prompt', kind: 'area' },
  { key: ['approvals'], label: 'Questions of the agent', options: ['autonomous', 'interactive', 'review'] },
  {
    key: ['permission_mode'],
    label: 'Actions without a question',
    options: ['default', 'acceptEdits', 'bypassPermissions', 'plan', 'dontAsk', 'auto', 'delegate'],
  },
  { key: ['max_turns'], label: 'Turns in one job, at most', kind: 'number', step: 1 },
  { key: ['timeout'], label: 'Time limit of one job, such as 1h30m' },
  { key: ['budget', 'job'], label: 'Budget of one job, in US dollars', kind: 'number', step: 0.01 },
  { key: ['budget', 'day'], label: 'Budget of one day, in US dollars', kind: 'number', step: 0.01 },
];
const SCHEDULE_FIELDS = [
  { key: ['interval'], label: 'Interval, such as 30m' },
  { key: ['cron'], label: 'Cron expression, such as 0 3 * * *' },
  { key: ['prompt'], label: 'Prompt', kind: 'area' },
  { key: ['enabled'], label: 'Enabled', options: ['true', 'false'], kind: 'boolean' },
];
const WORKFLOW_FIELDS = [
  { key: ['description'], label: 'Purpose' },
  { key: ['agent'], label: 'Agent of phases without their own' },
];
const PHASE_FIELDS = [
  { key: ['label'], label: 'Title' },
  { key: ['agent'], label: 'Agent' },
  { key: ['prompt'], label: 'Prompt', kind: 'area' },
  { key: ['command'], label: 'Command', kind: 'area' },
  { key: ['depends_on'], label: 'Phases before it, separated by commas', kind: 'list' },
];

const made = (name, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
};
const at = (values, path) => path.reduce((value, step) => value?.[step], values);
const isEmpty = (value) => value === undefined || value === null;

// Value of a field as the text of its input; `undefined` if only the text can hold it.
function shown(value, field) {
  if (isEmpty(value)) return '';
  if (field.kind === 'list') return Array.isArray(value) && value.every((item) => typeof item !== 'object') ? value.join(', ') : typeof value === 'string' ? value : undefined;
  return typeof value === 'object' ? undefined : String(value);
}

// Value of an input for the file; `null` removes it.
function entered(text, field) {
  const words = text.trim();
  if (!words) return null;
  if (field.kind === 'number') return Number(words);
  if (field.kind === 'boolean') return words === 'true';
  if (field.kind === 'list') return words.split(',').map((word) => word.trim()).filter(Boolean);
  return field.kind === 'area' && words.includes('\n') ? `${words}\n` : words;
}

/** Shows the values of a file in `root`. `edit` gets a text in which one value has changed. */
export class ConfigForm {
  constructor(root, { text, edit, fail }) {
    Object.assign(this, { root, text, edit, fail, shape: '' });
  }

  clear() {
    this.root.replaceChildren();
    this.shape = '';
  }

  /** Shows the values of the text; `isWorkflow` says what it defines. */
  show(values, isWorkflow) {
    const parts = isWorkflow ? this.workflowParts(values) : this.agentParts(values);
    // Only the fields of another file are built again, so that the focus stays.
    const shape = JSON.stringify(parts.map((part) => [part.title, part.path]));
    if (shape !== this.shape) {
      this.shape = shape;
      const focused = document.activeElement?.id;
      this.root.replaceChildren(...parts.map((part) => this.part(part)));
      if (focused) document.getElementById(focused)?.focus();
    }
    for (const input of this.root.querySelectorAll('[data-path]')) this.fill(input, values);
  }

  agentParts(values) {
    const agents = Array.isArray(values?.agents) ? values.agents.map((agent, number) => [agent, ['agents', number]]) : [[values, []]];
    return agents.filter(([agent]) => agent?.name).flatMap(([agent, path]) => [
      { title: `Agent ${agent.name}`, path, fields: AGENT_FIELDS },
      ...Object.keys(agent.schedules ?? {}).map((name) => ({
        title: `Schedule ${name}`, path: [...path, 'schedules', name], fields: SCHEDULE_FIELDS, removable: true,
      })),
      { title: `New schedule of ${agent.name}`, path: [...path, 'schedules'], add: 'schedule' },
    ]);
  }

  workflowParts(values) {
    const phases = Array.isArray(values?.phases) ? values.phases : [];
    return [
      { title: `Workflow ${values?.name ?? ''}`, path: [], fields: WORKFLOW_FIELDS },
      ...phases.map((phase, number) => ({
        title: `Phase ${phase?.name ?? number + 1}`, path: ['phases', number], fields: PHASE_FIELDS, removable: phases.length > 1,
      })),
      { title: 'New phase', path: ['phases'], count: phases.length, add: 'phase' },
    ];
  }

  part(part) {
    const children = part.add ? this.addition(part) : part.fields.map((field) => this.field(part, field));
    if (part.removable) {
      const remove = made('button', { className: 'button danger', type: 'button', textContent: 'Remove' });
      remove.addEventListener('click', () => this.set(part.path, null));
      children.push(made('div', { className: 'row' }, remove));
    }
    const details = made('details', { open: part.path.length === 0 }, made('summary', { textContent: part.title }), made('div', { className: 'stack-s pad' }, ...children));
    return details;
  }

  field(part, field) {
    const path = [...part.path, ...field.key];
    const id = `f-${path.join('-')}`;
    const input = field.options
      ? made('select', {}, made('option', { value: '', textContent: 'not set' }), ...field.options.map((value) => made('option', { value, textContent: value })))
      : field.kind === 'area' ? made('textarea', { rows: 3 })
      : made('input', field.kind === 'number' ? { type: 'number', min: 0, step: field.step } : {});
    input.id = id;
    input.dataset.path = JSON.stringify(path);
    input.field = field;
    input.addEventListener('change', () => this.set(path, entered(input.value, field)));
    return made('div', { className: 'field' }, made('label', { htmlFor: id, textContent: field.label }), input);
  }

  fill(input, values) {
    const text = shown(at(values, JSON.parse(input.dataset.path)), input.field);
    input.disabled = text === undefined;
    input.title = text === undefined ? 'The value has parts of its own. Change it in the text.' : '';
    // A choice that the list lacks stays visible.
    if (input.field.options && text && !input.field.options.includes(text)) input.append(made('option', { value: text, textContent: text }));
    if (document.activeElement !== input) input.value = text ?? '';
  }

  addition(part) {
    const input = (label, id) => {
      const control = made('input', { id });
      return [control, made('div', { className: 'field' }, made('label', { htmlFor: id, textContent: label }), control)];
    };
    const prefix = `n-${part.path.join('-')}`;
    const isPhase = part.add === 'phase';
    const [name, nameField] = input('Name', `${prefix}-name`);
    const [what, whatField] = input(isPhase ? 'Prompt' : 'Interval or cron expression', `${prefix}-what`);
    const button = made('button', { className: 'button', type: 'button', textContent: isPhase ? 'Add the phase' : 'Add the schedule' });
    button.addEventListener('click', async () => {
      const [title, words] = [name.value.trim(), what.value.trim()];
      if (!title || !words) return this.fail(new Error(isPhase ? 'A phase needs a name and a prompt.' : 'A schedule needs a name and a time.'));
      const timing = words.includes(' ') || words.startsWith('@') ? { cron: words } : { interval: words };
      const done = isPhase ? await this.set(['phases', part.count], { name: title, prompt: words }) : await this.set([...part.path, title], timing);
      if (done) name.value = what.value = '';
    });
    return [nameField, whatField, made('div', { className: 'row' }, button)];
  }

  // Changes one value of the text. Returns true if that was possible.
  async set(path, value) {
    try {
      const changed = await call('POST', '/api/v1/config/value', { text: this.text(), path, value });
      this.edit(changed.text);
      return true;
    } catch (error) {
      this.fail(error);
      return false;
    }
  }
}
