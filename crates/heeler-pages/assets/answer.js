// Answers to questions: `<form data-answer="ID">`.
//
// The value of the button is the decision: `approve`, `always`, `reject` or `reply`. `text` holds the text,
// `input` the changed input of the tool as JSON (sent only if it differs), and each
// `[data-question]` one line with the choice or the typed text.

import { call, toast } from './act.js';
import { refreshSoon } from './live.js';

function changedInput(form) {
  const field = form.elements.input;
  if (!field || field.value === field.defaultValue) return undefined;
  try {
    return JSON.parse(field.value);
  } catch (error) {
    field.setAttribute('aria-invalid', 'true');
    field.focus();
    throw Object.assign(new Error('The input is no JSON.'), { hint: error.message });
  }
}

// A choice is sent by its number; text that looks like a number is quoted.
function replied(question) {
  const own = question.querySelector('input[type=text], textarea')?.value.trim();
  if (own) return /^[\d\s,]+$/.test(own) ? `"${own}"` : own.replace(/\s*\n\s*/g, ' ');
  return [...question.querySelectorAll('input:checked')].map((one) => one.value).join(', ');
}

function answered(form, verb) {
  if (verb === 'reply') {
    const questions = [...form.querySelectorAll('[data-question]')];
    const lines = questions.map(replied);
    const text = questions.length ? lines.join('\n') : form.elements.text.value.trim();
    if (!text || lines.includes('')) {
      throw Object.assign(new Error('There is a question without an answer.'), { hint: 'Choose, or write something.' });
    }
    return { approve: true, text };
  }
  const text = form.elements.text?.value.trim() || undefined;
  if (verb === 'reject') return { approve: false, text };
  if (verb === 'always') return { approve: true, text, always: true };
  return { approve: true, text, updatedInput: changedInput(form) };
}

document.addEventListener('submit', async (event) => {
  const form = event.target;
  if (!form.matches('form[data-answer]')) return;
  event.preventDefault();
  const button = event.submitter;
  if (!button || button.getAttribute('aria-busy') === 'true') return;
  button.setAttribute('aria-busy', 'true');
  try {
    // A question that differs from the shown one is refused.
    const answer = { ...answered(form, button.value), inputHash: form.dataset.shown };
    const reply = await call('POST', `/api/v1/approvals/${encodeURIComponent(form.dataset.answer)}`, answer);
    toast(reply.message ?? 'Answered.');
    // A question can be answered once; its place is refreshed.
    form.reset();
    document.activeElement?.blur();
    document.getElementById('main')?.focus({ preventScroll: true });
    refreshSoon();
  } catch (error) {
    toast(error.message, error.hint, true);
  } finally {
    button.removeAttribute('aria-busy');
  }
});
