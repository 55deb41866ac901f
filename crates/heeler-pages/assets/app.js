// Loaded by every page. Each module handles the attributes that it documents.
import './live.js';
import './time.js';
import './act.js';
import './nav.js';

// Loaded by some pages.
const SOME = {
  '[data-transcript]': './transcript.js', '[data-answers]': './answer.js', '[data-config-editor]': './config.js',
  'form[data-push]': './push.js',
};
for (const [mark, file] of Object.entries(SOME)) if (document.querySelector(mark)) import(file);
