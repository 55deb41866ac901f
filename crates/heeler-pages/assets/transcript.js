// Transcripts: the newest rows first, older rows on demand, new rows as they arrive.
//
// `<section data-transcript="/jobs/ID/rows.html">` has a box `[data-rows]` that scrolls and
// `<div data-page data-previous="N">` in it with articles. `data-previous` is the `before` parameter
// of the page of older rows.
//   data-follow     job that is followed, from line data-from
//   [data-older]    link to older rows; loaded into the page, as when scrolling up
//   [data-row-count] shows the number of rows
//   [data-end]      button that jumps to the end; hidden at the end
//   [data-told]     announces the end of the job to screen readers
//   data-session    the rows are messages; rows of a running job are shown below them until it
//                   ends

import { connect, refreshSoon } from './live.js';
import { call, toast } from './act.js';

// Beyond this number, the articles farthest from the reader are removed.
const KEPT_MAX = 1500;
const NEAR_END_PX = 48;
const NEAR_START_PX = 300;

const seconds = (ms) => (ms < 1000 ? `${ms} ms` : ms < 9950 ? `${(ms / 1000).toFixed(1)} s` : `${Math.round(ms / 1000)} s`);

// Returns the position of an event: line, and record in the line.
const place = (id) => { const [line, part] = String(id).split('.'); return [Number(line), Number(part ?? 0)]; };
const isAfter = (a, b) => !b || a[0] > b[0] || (a[0] === b[0] && a[1] > b[1]);

function parsed(html) {
  // A detached document executes and loads nothing.
  return new DOMParser().parseFromString(html, 'text/html').body;
}

class Transcript {
  constructor(section) {
    this.section = section;
    this.box = section.querySelector('[data-rows]');
    this.older = section.querySelector('[data-older]');
    this.toEnd = section.querySelector('[data-end]');
    this.count = section.querySelector('[data-row-count]');
    this.told = section.querySelector('[data-told]');
    this.page = this.box.querySelector('[data-page]');
    this.isSession = 'session' in section.dataset;
    this.calls = new Map();
    this.results = new Map();
    this.isFollowing = true;
    // True if the last row shown is the last row.
    this.hasEnd = !this.page.dataset.next;
    this.missed = 0;
    this.watch();
    this.taken(this.page);
    this.shownOlder();
    this.mark = this.isSession ? 'message-' : 'row-';
    const [, number] = new RegExp(`^#${this.mark}(\\d+)$`).exec(location.hash) ?? [];
    if (number) this.show(Number(number));
    else {
      this.goToEnd();
      // Content that does not fill the box cannot be scrolled.
      this.looked();
    }
    if (section.dataset.follow) this.follow(section.dataset.follow, Number(section.dataset.from));
  }

  watch() {
    this.box.addEventListener('scroll', () => this.looked(), { passive: true });
    // Do not scroll away from details that the reader opens.
    this.box.addEventListener('toggle', () => this.looked(), true);
    this.toEnd?.addEventListener('click', () => this.jump());
    this.older?.addEventListener('click', (event) => {
      // Let the browser open it in another tab.
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      this.loadOlder();
    });
  }

  isAtEnd() {
    return this.hasEnd && this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < NEAR_END_PX;
  }

  looked() {
    this.isFollowing = this.isAtEnd();
    if (this.isFollowing) this.missed = 0;
    this.shownEnd();
    if (this.box.scrollTop < NEAR_START_PX) this.loadOlder();
  }

  shownEnd() {
    if (!this.toEnd) return;
    this.toEnd.hidden = this.isFollowing;
    const count = this.missed ? ` (${this.missed} new)` : '';
    this.toEnd.querySelector('[data-missed]').textContent = count;
  }

  shownOlder() {
    const { previous } = this.page.dataset;
    if (!this.older) return;
    this.older.hidden = !previous;
    if (previous) this.older.href = `${location.pathname}?before=${encodeURIComponent(previous)}#h-log`;
  }

  goToEnd() {
    this.box.scrollTop = this.box.scrollHeight;
    this.isFollowing = true;
    this.missed = 0;
    this.shownEnd();
  }

  // Jumps to the end, which may have to be loaded again.
  async jump() {
    if (!this.hasEnd) await this.reload();
    this.goToEnd();
    this.box.focus({ preventScroll: true });
  }

  async fetched(query) {
    const reply = await fetch(`${this.section.dataset.transcript}${query}`, { headers: { accept: 'text/html' } });
    if (!reply.ok || reply.redirected) throw new Error('It cannot be read now.');
    return parsed(await reply.text()).querySelector('[data-page]');
  }

  async loadOlder() {
    const before = this.page.dataset.previous;
    if (!before || this.isLoading) return;
    this.isLoading = true;
    this.older.setAttribute('aria-busy', 'true');
    try {
      const more = await this.fetched(`?before=${encodeURIComponent(before)}`);
      const first = this.page.firstElementChild;
      const top = first?.getBoundingClientRect().top;
      const added = [...more.children];
      this.page.prepend(...added);
      this.page.dataset.previous = more.dataset.previous ?? '';
      this.taken(this.page, added);
      this.cut('last');
      this.shownOlder();
      // Keep the visible rows in place. This scrolls, which may load more.
      if (first) this.box.scrollTop += first.getBoundingClientRect().top - top;
      if (this.box.scrollHeight <= this.box.clientHeight) setTimeout(() => this.loadOlder());
    } catch (error) {
      toast(error.message, 'Try again.', true);
    } finally {
      this.isLoading = false;
      this.older.removeAttribute('aria-busy');
    }
  }

  replace(page) {
    this.page.replaceChildren(...page.children);
    this.page.dataset.previous = page.dataset.previous ?? '';
    this.hasEnd = !page.dataset.next;
    this.calls.clear();
    this.results.clear();
    this.taken(this.page);
    this.shownOlder();
  }

  // Loads the end again and continues from there.
  async reload() {
    const job = this.stream && !this.isSession ? this.job : null;
    if (job) this.stop();
    const fresh = await this.fetched('');
    this.replace(fresh);
    this.seen = null;
    if (fresh.dataset.lines) this.counted(Number(fresh.dataset.lines));
    if (job) this.follow(job, Number(fresh.dataset.lines));
  }

  // Shows a row and its surroundings.
  async show(number) {
    const found = () => document.getElementById(this.mark + number);
    try {
      if (!found()) this.replace(await this.fetched(`?before=${number + 25}`));
      found()?.scrollIntoView();
      this.looked();
    } catch (error) {
      toast(error.message, 'Try again.', true);
    }
  }

  // Prepares new articles: times, tool calls with their results.
  taken(root, articles = root.children) {
    for (const article of [...articles]) {
      const at = article.querySelector('time[data-clock]');
      if (at) at.textContent = new Date(at.dateTime).toLocaleTimeString();
      if (article.dataset?.call) this.pair(article);
    }
  }

  pair(article) {
    const key = article.dataset.call;
    const isCall = article.querySelector(':scope > details.tool > summary > strong') !== null;
    (isCall ? this.calls : this.results).set(key, article);
    const [called, gave] = [this.calls.get(key), this.results.get(key)];
    if (!called || !gave || called === gave) return;
    // The recorded time leaves out the wait for people; only rows of other programs lack it.
    const took = gave.dataset.took !== undefined
      ? Number(gave.dataset.took)
      : Date.parse(gave.dataset.at) - Date.parse(called.dataset.at);
    if (took >= 0) {
      const word = document.createElement('span');
      word.className = 'took muted nowrap';
      word.textContent = seconds(took);
      called.querySelector('header > a')?.before(word);
    }
    // Its URL still works.
    const mark = document.createElement('span');
    mark.id = gave.id;
    gave.querySelector('header')?.remove();
    const given = [...gave.childNodes];
    gave.remove();
    called.append(mark, ...given);
    this.calls.delete(key);
    this.results.delete(key);
  }

  // Removes distant articles.
  cut(from) {
    const articles = this.page.children;
    while (articles.length > KEPT_MAX) {
      const gone = from === 'first' ? articles[0] : articles[articles.length - 1];
      gone.remove();
      if (from === 'first') this.page.dataset.previous = articles[0].dataset.number;
      else this.hasEnd = false;
    }
    if (from === 'first') this.shownOlder();
  }

  follow(job, from) {
    if (this.stream) return;
    this.job = job;
    if (this.isSession) this.seen = null;
    const path = `/api/v1/jobs/${encodeURIComponent(job)}/stream?as=html&from=`;
    // A known line is sent again, because it may hold another record; skip known records.
    const url = () => path + (this.seen ? this.seen[0] : from);
    this.stream = connect(url, {
      row: (html, id) => this.came(id, () => parsed(html).firstElementChild),
      large: (data, id) => this.came(id, () => this.large(JSON.parse(data))),
      delta: (data) => this.says(JSON.parse(data).text),
      status: () => refreshSoon(),
      end: () => this.ended(),
    }, { raw: true });
  }

  came(id, make) {
    const at = place(id);
    if (!isAfter(at, this.seen)) return;
    this.seen = at;
    this.counted(at[0] + 1);
    this.saying?.remove();
    this.saying = null;
    if (!this.isFollowing) this.missed += 1;
    if (this.hasEnd) {
      const article = make();
      if (article) this.add(article);
    }
    this.shownEnd();
  }

  counted(rows) {
    if (!this.count) return;
    const number = String(rows).replace(/\B(?=(\d{3})+$)/g, '\u202f');
    this.count.textContent = `${number} ${rows === 1 ? 'row' : 'rows'}`;
  }

  add(article) {
    this.place().append(article);
    this.taken(this.page, [article]);
    if (!this.isFollowing) return;
    if (!this.isSession) this.cut('first');
    this.box.scrollTop = this.box.scrollHeight;
  }

  // Returns the container of a job's rows: below the messages of a session, else the transcript.
  place() {
    if (!this.isSession) return this.page;
    this.below ??= this.box.appendChild(document.createElement('div'));
    this.below.className = 'below';
    return this.below;
  }

  large({ line, bytes }) {
    const article = document.createElement('article');
    article.className = 'entry of-system';
    article.dataset.number = line;
    article.textContent = `A row of ${Math.round(bytes / 1e6)} MB…`;
    const path = `/jobs/${encodeURIComponent(this.job)}/rows.html?before=${line + 1}&limit=1`;
    fetch(path).then((reply) => reply.text()).then((html) => {
      article.replaceWith(...(parsed(html).querySelector('[data-page]')?.children ?? []));
    }).catch(() => {});
    return article;
  }

  // Unfinished text. Its row replaces it.
  says(text) {
    if (!this.hasEnd) return;
    if (!this.saying) {
      this.saying = document.createElement('article');
      this.saying.className = 'entry of-agent saying';
      const who = document.createElement('header');
      who.innerHTML = '<span class="who">agent</span>';
      const words = document.createElement('p');
      this.saying.append(who, words);
      this.place().append(this.saying);
    }
    this.saying.lastChild.textContent += text;
    if (this.isFollowing) this.box.scrollTop = this.box.scrollHeight;
  }

  stop() {
    this.stream?.close();
    this.stream = null;
  }

  async ended() {
    this.stop();
    this.saying?.remove();
    this.saying = null;
    delete this.section.dataset.follow;
    if (this.told) this.told.textContent = 'The job has ended.';
    refreshSoon();
    if (!this.isSession) return;
    try {
      const wasFollowing = this.isFollowing;
      await this.reload();
      this.below?.remove();
      this.below = null;
      if (wasFollowing) this.goToEnd();
    } catch { /* the rows stay */ }
  }
}

function talk(form, transcript) {
  const words = form.elements.prompt;
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    const text = words.value.trim();
    const button = form.querySelector('button');
    if (!text || button.getAttribute('aria-busy') === 'true') return;
    button.setAttribute('aria-busy', 'true');
    try {
      const reply = await call('POST', form.dataset.talk, { prompt: text, attended: true });
      words.value = '';
      transcript.goToEnd();
      transcript.follow(reply.id, 0);
      refreshSoon();
    } catch (error) {
      toast(error.message, error.hint, true);
    } finally {
      button.removeAttribute('aria-busy');
    }
  });
  words.addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) { event.preventDefault(); form.requestSubmit(); }
  });
}

for (const section of document.querySelectorAll('[data-transcript]')) {
  const transcript = new Transcript(section);
  const form = document.querySelector('form[data-talk]');
  if (form) talk(form, transcript);
  // The session or the job may have been continued elsewhere.
  let known = document.querySelector('[data-attempts]')?.dataset.attempts;
  document.addEventListener('heeler:refreshed', () => {
    const now = document.querySelector('[data-at-work]');
    if (!now) return;
    const { atWork, job, attempts, messages } = now.dataset;
    // It may have continued and ended between two polls.
    const wentOn = attempts !== known;
    known = attempts;
    if (transcript.stream) return;
    if (atWork || wentOn) {
      transcript.follow(atWork || job, transcript.isSession ? 0 : Number(section.dataset.from));
    }
    else if (messages && messages !== transcript.page.dataset.total && transcript.isFollowing) {
      transcript.reload().then(() => transcript.goToEnd(), () => {});
      transcript.page.dataset.total = messages;
    }
  });
}
